// SPDX-License-Identifier: Apache-2.0
// Modes: each action of the program on a deck has a file here and a row in the registry. To add
// one, write a file with NAME_row() and add its row to registry.cpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/registry.hpp"
#include "train/attempt.hpp"

namespace modes {

// Arguments of a mode: the deck and how the program was called.
struct Call {
  const train::Recipe& recipe;
  config::Deck& deck;
  train::Start start;
  int ranks = 0;                     // --ranks; 0: as many as the deck's mesh needs
  std::string graph{};               // --graph; "" = none
  comm::Session* session = nullptr;  // null for modes of one process
  // The locked run directory; null for modes that keep none, and if it must still be made.
  std::unique_ptr<job::RunDirectory> directory = nullptr;
  bool cleanup = false;               // --cleanup
  std::vector<std::string> images{};  // files and folders after the deck (Mode::images_from)
  bool json = false;                  // --json
};

struct Mode {
  std::string name, doc;
  bool on_ranks = false;  // needs MPI; otherwise one process does all the work
  // true: the run directory is locked before the deck is checked, and signals stop the mode
  bool keeps_run_directory = false;
  bool on_paper = false;             // takes --ranks; reads no sample, so --validate runs it too
  int (*run)(Call& call) = nullptr;  // returns the exit code
  // Set if the mode works on image files that follow the deck. A checkpoint or a run directory may
  // then take the place of the deck, and becomes the value of this key.
  const char* images_from = nullptr;
  const char* own_deck = nullptr;  // the text of the deck if none is given; null: a deck is needed
  bool prints_json = false;        // takes --json
  // The deck's place holds a file of weights; the mode runs with its own deck.
  bool reads_weights = false;
};

const base::Registry<Mode>& registry();

}  // namespace modes
