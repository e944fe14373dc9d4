// SPDX-License-Identifier: Apache-2.0
#include "host/lost_time.hpp"

#include <fmt/format.h>
#include <omp.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <utility>

namespace host {
namespace {

// The time to read a page back from a disk or over the network.
constexpr double kMajorFault_s = 1e-3;

// Returns the file with the time that tasks stalled for memory: tasks of this process's control
// group, or of the whole node.
std::string find_memory_file(const std::string& proc, const std::string& cgroups) {
  std::ifstream groups(proc + "/self/cgroup");
  for (std::string line; std::getline(groups, line);)
    if (line.starts_with("0::")) {  // version 2
      const std::string file = cgroups + line.substr(3) + "/memory.pressure";
      if (std::ifstream(file).good()) return file;
    }
  return proc + "/pressure/memory";
}

}  // namespace

LostTime::LostTime(int threads, std::string proc, std::string cgroups)
    : proc_(std::move(proc)),
      memory_file_(find_memory_file(proc_, cgroups)),
      threads_(size_t(threads)) {
#pragma omp parallel num_threads(threads)
  threads_[size_t(omp_get_thread_num())] = int(::syscall(SYS_gettid));
  last_ = read();
}

LostTime::Seconds LostTime::since_last() {
  const Seconds before = std::exchange(last_, read());
  return {last_.stolen - before.stolen, last_.memory - before.memory};
}

LostTime::Seconds LostTime::read() const { return {steal_s() + delay_s(), memory_s()}; }

// Returns the longest time that a compute thread has waited for a CPU.
double LostTime::delay_s() const {
  double most = 0;
  for (int thread : threads_) {
    std::ifstream file(fmt::format("{}/self/task/{}/schedstat", proc_, thread));
    double ran_ns = 0, waited_ns = 0;
    if (file >> ran_ns >> waited_ns) most = std::max(most, waited_ns * 1e-9);
  }
  return most;
}

// Returns the time that a hypervisor took from the CPUs of this process, on average.
double LostTime::steal_s() const {
  cpu_set_t own;
  CPU_ZERO(&own);
  if (sched_getaffinity(0, sizeof own, &own) != 0) return 0;
  double ticks = 0;
  int cpus = 0;
  std::ifstream file(proc_ + "/stat");
  for (std::string line; std::getline(file, line);) {
    // cpuN user nice system idle iowait irq softirq steal (proc(5))
    int cpu = 0;
    double steal = 0;
    if (std::sscanf(line.c_str(), "cpu%d %*f %*f %*f %*f %*f %*f %*f %lf", &cpu, &steal) != 2 ||
        line.starts_with("cpu "))
      continue;
    if (cpu >= CPU_SETSIZE || !CPU_ISSET(size_t(cpu), &own)) continue;
    ticks += steal;
    ++cpus;
  }
  return cpus ? ticks / cpus / double(sysconf(_SC_CLK_TCK)) : 0;
}

// Returns the larger of two estimates: the pressure that the kernel measures, and the pages that
// the main thread had to wait for.
double LostTime::memory_s() const {
  double stalled_s = 0;
  std::ifstream file(memory_file_);
  for (std::string line; std::getline(file, line);)
    if (const size_t at = line.find("total="); line.starts_with("some ") && at != line.npos)
      stalled_s = std::strtod(line.c_str() + at + 6, nullptr) * 1e-6;
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return std::max(stalled_s, double(usage.ru_majflt) * kMajorFault_s);
}

}  // namespace host
