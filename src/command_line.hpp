// SPDX-License-Identifier: Apache-2.0
// The program's options.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/comm.hpp"

// There are many members because each option has one.
struct CommandLine {
  std::string deck, mode = "train", mesh_selector, describe, list;
  std::vector<std::string> set, unset, allow_change;
  std::vector<std::string> images;           // files and folders after the deck
  std::map<std::string, std::string> given;  // option -> value, equal on all ranks
  int ranks = 0;
  std::string graph;  // file for the graph of a planned step
  int fast_dev = 0;   // steps of a trial
  bool validate = false, files = false, describe_given = false;
  bool cleanup = false;  // removes the run directory after success
  bool json = false;     // prints one JSON object
  // True if one process does all the work, without MPI.
  bool looks() const;
};

// The answer to a command line that needs no further work: help, the version, or its error.
struct Answer {
  int exit = 0;
  std::string text;
};

// Fills `c`. Returns the answer if nothing else is to be done.
std::optional<Answer> parse_command_line(int argc, char** argv, CommandLine& c);
// Prints the registered variants of one kind, for --list.
void list_variants(const std::string& what);
// Prints the registered variants of this name, each with its list. Returns false if there is none.
bool print_variants(const std::string& name);
// Returns true if all ranks were started with the same options; mpirun can give each rank its own
// command line and environment. Otherwise rank 0 logs the differences.
bool agree_on_command(comm::Comm& world, const CommandLine& c);
// Returns true if all ranks read the same deck. Otherwise rank 0 logs it.
bool agree_on_deck(comm::Comm& world, const CommandLine& c, const std::string& digest);
