// SPDX-License-Identifier: Apache-2.0
// [init] of the deck: what the parameters of a new run start from.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "config/table.hpp"

namespace checkpoint {

struct InitOptions {
  std::string from;  // "" = random
  // As published (cappa.md 7.5): the head and class token of a classifier, which CapPa does not
  // have.
  std::vector<std::string> dont_load = {"(.*/)?head/(kernel|bias)", "(.*/)?cls"};
  std::map<std::string, std::string> map;  // our prefix -> their name or prefix
  bool resample = true;                    // posemb
  bool average = false;                    // weights
  void bind(config::Table& t);
};

}  // namespace checkpoint
