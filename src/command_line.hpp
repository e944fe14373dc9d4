// SPDX-License-Identifier: Apache-2.0
// The program's options.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/comm.hpp"

struct CommandLine {
  std::string deck, mode = "train", mesh_selector, describe, list;
  std::vector<std::string> set, unset, allow_change;
  std::map<std::string, std::string> given;  // what all ranks must have alike: options by name
  int ranks = 0;
  bool validate = false, files = false, describe_given = false;
  // True if one process does all the work, without MPI.
  bool looks() const;
};

// A command line that is answered at once: help, the version, or what is wrong with it.
struct Answer {
  int exit = 0;
  std::string text;
};

// Fills `c`. Returns the answer if there is nothing else to do.
std::optional<Answer> parse_command_line(int argc, char** argv, CommandLine& c);
// --list: the registered variants of one kind.
void list_variants(const std::string& what);
// Prints the registered variants of this name, with the list that each belongs to. Returns false if
// there is none.
bool print_variants(const std::string& name);
// Returns true if all ranks were started with the same options: mpirun can give each rank a command
// line and an environment of its own. If not, rank 0 logs what differs.
bool agree_on_command(comm::Comm& world, const CommandLine& c);
// Returns true if all ranks read the same deck. If not, rank 0 logs it.
bool agree_on_deck(comm::Comm& world, const CommandLine& c, const std::string& digest);
