// SPDX-License-Identifier: Apache-2.0
// The deck that a checkpoint holds, for modes that need nothing else of a run.
#pragma once

#include <string>
#include <vector>

#include "config/table.hpp"

namespace modes {

// True if the path is a checkpoint file or a folder, and so not a deck.
bool holds_deck(const std::string& path);

// Reads the resolved deck of a checkpoint, or of the newest valid one of a run directory. The
// checkpoint is also the value of `from_key`, unless an override sets it. Error(Exit::checkpoint)
// if there is no valid file.
config::DeckSource read_run_deck(const std::string& path, const std::string& from_key,
                                 std::vector<std::string> overrides,
                                 std::vector<std::string> removals);

}  // namespace modes
