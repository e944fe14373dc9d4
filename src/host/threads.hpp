// SPDX-License-Identifier: Apache-2.0
// Compute threads of a rank, and what is wrong with the cores that the launcher gave the ranks of a
// node.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "comm/comm.hpp"

namespace host {

// With OMP_PROC_BIND or OMP_PLACES set, OpenMP has bound this thread to its first place when the
// program was loaded: it looked as if this rank had that core only, and the threads that load data
// and write checkpoints, which inherit it, would share it. Gives the calling thread all places of
// this rank. The compute threads that OpenMP starts stay where it puts them. Before any other
// thread is started.
void free_main_thread();

// The cores of these CPUs of the system, each by its lowest CPU: where a core runs two threads at a
// time it is two CPUs, and products want one thread of a core. `sysfs` says which belong together;
// a CPU it does not tell of is a core.
std::set<int> cores_of(const std::set<int>& cpus,
                       const std::string& sysfs = "/sys/devices/system/cpu");

// Threads this rank should use: the deck's, or the cores it is bound to, divided by the ranks that
// share them.
int choose_threads(int64_t asked, int local_size);

// Starts the compute threads of the calling thread, which is to be the main one: those that OpenMP
// starts leave stop signals to it, and have stacks for what ends them.
void start_threads(int threads);

// Where a rank may run.
struct RankCores {
  std::string host;
  std::set<int> cores;  // that the rank is bound to
  int node_cores = 0;   // that the job may use on this host, as far as the rank can tell
  int threads = 0;
};
// A line for each host whose ranks leave cores idle or take each other's, with the way out. Hosts
// that are alike are told once.
std::vector<std::string> binding_advice(const std::vector<RankCores>& ranks);

// OMP_NUM_THREADS does not set the number of compute threads; run.threads does. Returns what to say
// of a value (nullptr: not set) that asks for another number than `threads`, or for none; "" if
// there is nothing to say.
std::string omp_threads_advice(const char* value, int threads);

// All ranks; rank 0 writes the lines.
void print_binding(comm::Comm& world, const std::string& host, int threads);

}  // namespace host
