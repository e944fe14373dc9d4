// SPDX-License-Identifier: Apache-2.0
// What differs between the deck of a checkpoint and the deck of the run that goes on from it.
#pragma once

#include <string>
#include <vector>

#include "config/table.hpp"

namespace train {

struct KeyChange {
  std::string key, was, is;  // values as TOML; "absent" where a deck has no such key
  bool free = false;         // marked [R]
};

// Changed keys in order. Error(Exit::config) lists all that are neither marked [R] nor allowed:
// `allowed` are keys or tables ("optimizer", "optimizer.learning_rate") of --allow-change; keys
// whose change would make the saved state meaningless are never allowed. An `allowed` entry that
// names no changed key is no error: the flag may stay in a job script.
std::vector<KeyChange> check_changes(const std::string& saved_deck, const config::Deck& deck,
                                     const std::vector<std::string>& allowed);

}  // namespace train
