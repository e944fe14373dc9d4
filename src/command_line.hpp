// The program's options.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/comm.hpp"

struct CommandLine {
  std::string deck, mode = "train", mesh_selector, describe, list;
  std::vector<std::string> set, allow_change;
  std::map<std::string, std::string> given;  // options by name
  int ranks = 0;
  bool validate = false, describe_given = false;
};

// Fills `c`; or prints help or what is wrong and returns the exit code to leave with.
std::optional<int> parse_command_line(int argc, char** argv, CommandLine& c);
// --list: the registered variants of one kind.
void list_variants(const std::string& what);
// Were all ranks started with the same options and the same bytes of the deck (`digest`)? mpirun can give each rank a
// command line, an environment and a file system of its own. If not, rank 0 says what differs.
bool agree_on_command(comm::Comm& world, const CommandLine& c, const std::string& digest);
