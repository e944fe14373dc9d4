// SPDX-License-Identifier: Apache-2.0
// Modes: each thing that the program can do with a deck is a row of the registry and a file here.
// To add one: a file with NAME_mode(), and its row in registry.cpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "train/attempt.hpp"

namespace modes {

// How the program was called, for a mode.
struct Call {
  const train::Recipe& recipe;
  config::Deck& deck;
  train::Start start;
  int ranks = 0;                     // --ranks; 0: as many as the deck's mesh asks for
  comm::Session* session = nullptr;  // null for modes of one process
  // The run directory, locked; null for modes that keep none, and where it is still to be made.
  std::unique_ptr<job::RunDirectory> directory = nullptr;
};

struct Mode {
  std::string name, doc;
  bool on_ranks = false;  // needs MPI; otherwise one process does all the work
  bool keeps_run_directory =
      false;              // its directory is locked before the deck is checked; signals stop it
  bool on_paper = false;  // takes --ranks; reads no sample, so --validate runs it too
  int (*run)(Call& call) = nullptr;  // returns the exit code
};

const std::vector<Mode>& registry();
// Returns the row of this name; there must be one.
const Mode& mode_named(const std::string& name);

}  // namespace modes
