// SPDX-License-Identifier: Apache-2.0
// Compares the deck of a checkpoint with the deck of the run that continues from it.
#pragma once

#include <string>
#include <vector>

#include "config/table.hpp"

namespace train {

struct KeyChange {
  std::string key, was, is;  // values as TOML; "absent" where a deck has no such key
  bool free = false;         // marked [R]
};

// Returns the changed keys in order. Error(Exit::config) lists all that are neither marked [R] nor
// allowed. `allowed` holds the keys or tables of --allow-change ("optimizer",
// "optimizer.learning_rate"). Keys whose change would make the saved state meaningless are never
// allowed. An `allowed` entry that names no changed key is not an error, because the flag may stay
// in a job script.
std::vector<KeyChange> check_changes(const std::string& saved_deck, const config::Deck& deck,
                                     const std::vector<std::string>& allowed);

// True if `key` or a table above it is among `allowed`.
bool allows_change(const std::vector<std::string>& allowed, const std::string& key);

}  // namespace train
