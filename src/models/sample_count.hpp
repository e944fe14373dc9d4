// SPDX-License-Identifier: Apache-2.0
// Models with one row of memory for each sample of the training data. A deck may leave the number
// to the data, which are opened after the deck is read.
#pragma once

#include "models/model.hpp"

namespace models {

struct CountsSamples {
  virtual ~CountsSamples() = default;
  virtual int64_t& samples() = 0;  // 0 until it is known
};

// Returns the number that is still to be filled in, before the model is made to run; null if there
// is none. Copies of the options share it.
inline int64_t* samples_left_to_data(const ModelOptions& options) {
  auto* counts = dynamic_cast<CountsSamples*>(options.options.get());
  return counts && counts->samples() == 0 ? &counts->samples() : nullptr;
}

}  // namespace models
