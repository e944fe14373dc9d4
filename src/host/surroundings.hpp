// SPDX-License-Identifier: Apache-2.0
// Lists the environment, limits, libraries and machine of a process. Each function adds facts by
// name, such as "limit.stack" or "library.libmpi".
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace host {

using Facts = std::map<std::string, std::string>;

// Adds "env.NAME" for each variable (NAME=VALUE) that changes how a job computes or exchanges:
// variables of OpenMP, MPI, network libraries, GPUs, schedulers and this program. Omits variables
// that a launcher sets anew for each rank, and values of variables whose names suggest secrets.
void add_environment(const std::vector<std::string>& environment, Facts& facts);
std::vector<std::string> own_environment();

// Adds "limit.*": the limits of ulimit and of this process's control groups.
void add_limits(Facts& facts);
// Adds "library.NAME": the version of each library that is loaded, as its file has it.
void add_libraries(Facts& facts);
// Adds "machine.*": kernel, CPU, memory.
void add_machine(Facts& facts);
// Returns the identity that the linker gave this program, else a hash of its file.
std::string program_digest();

// Returns the most bytes that this process can have: the node's memory, or the control group's
// limit if that is less. 0: not known.
int64_t most_memory_bytes();
// The bytes that the processes of this control group use; 0: not known.
int64_t group_memory_bytes();

}  // namespace host
