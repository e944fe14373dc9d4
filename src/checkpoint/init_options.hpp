// SPDX-License-Identifier: Apache-2.0
// [init] of the deck: where a new run's parameters come from.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "config/table.hpp"

namespace checkpoint {

// Values of init.family beside the keys of families (vit_families.hpp).
inline constexpr const char* kAnyFamily = "auto";
inline constexpr const char* kOwnNames = "own";

struct InitOptions {
  std::string from;  // "" = random
  // The default of the published code (cappa.md 7.5): a classifier's head and class token, which
  // CapPa lacks.
  std::vector<std::string> dont_load = {"(.*/)?head/(kernel|bias)", "(.*/)?cls"};
  std::string family = kAnyFamily;
  std::map<std::string, std::string> map;  // our prefix -> name or prefix in the file
  bool resample = true;                    // posemb
  bool average = false;                    // weights
  void bind(config::Table& t);
};

}  // namespace checkpoint
