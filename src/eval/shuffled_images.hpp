// SPDX-License-Identifier: Apache-2.0
// Key `shuffle_images` of evaluators: each caption meets the image of another example. The gap to
// the evaluation without the key shows what images are worth.
#pragma once

#include <functional>

#include "config/table.hpp"
#include "data/dataset.hpp"

namespace eval {

struct ShuffledImages {
  bool on = false;

  void bind(config::Table& t);
  // Error(Exit::data) if the key is set and the set has no other image.
  void check(const data::Dataset& set) const;
  // Returns the function that maps a position to the position of its image, for a set of n
  // examples. Positions from n on are padding and keep their value.
  std::function<int64_t(int64_t)> place(int64_t n) const;
};

}  // namespace eval
