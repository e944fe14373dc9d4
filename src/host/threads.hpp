// SPDX-License-Identifier: Apache-2.0
// Chooses the compute threads of a rank, and reports problems with the cores that the launcher gave
// to the ranks of a node.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "comm/comm.hpp"

namespace host {

// Gives the calling thread all places of this rank. With OMP_PROC_BIND or OMP_PLACES set, OpenMP
// binds this thread to its first place when the program is loaded. Then the rank would seem to have
// that core only, and the threads that load data and write checkpoints would inherit it. Compute
// threads stay where OpenMP puts them. Call it before any other thread is started.
void free_main_thread();

// Returns the cores of these CPUs, each as its lowest CPU. A core that runs two threads at a time
// is two CPUs, but products run best with one thread per core. `sysfs` lists the CPUs of each core;
// a CPU that is missing there counts as a core.
std::set<int> cores_of(const std::set<int>& cpus,
                       const std::string& sysfs = "/sys/devices/system/cpu");

// Returns the compute threads of this rank: the deck's number, or the bound cores divided by the
// ranks that share them.
int choose_threads(int64_t asked, int local_size);

// Starts the compute threads from the main thread. They block stop signals, which the main thread
// handles, and have stacks for the handlers of fatal signals.
void start_threads(int threads);

// The cores on which a rank may run.
struct RankCores {
  std::string host;
  std::set<int> cores;  // cores that the rank is bound to
  int node_cores = 0;   // cores of this host that the job may use, as far as the rank can see
  int threads = 0;
};
// Returns the cores of every rank, by rank. All ranks call.
std::vector<RankCores> gather_cores(comm::Comm& world, const std::string& host, int threads);
// Returns a line for each host whose ranks leave cores idle or share cores, with the way out. Hosts
// with equal problems share a line.
std::vector<std::string> binding_advice(const std::vector<RankCores>& ranks);

// Returns advice for a value of OMP_NUM_THREADS (nullptr: not set) that differs from `threads`; ""
// if none is needed. Only run.threads sets the number of compute threads.
std::string omp_threads_advice(const char* value, int threads);

// Prints the advice at rank 0. All ranks call.
void print_binding(comm::Comm& world, const std::string& host, int threads);

}  // namespace host
