// SPDX-License-Identifier: Apache-2.0
#include "host/stolen_time.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace host {

StolenTime::StolenTime(comm::Comm& world, bool one_host)
    : world_(world), one_host_(one_host), last_(read()) {}

StolenTime::Reading StolenTime::read() {
  Reading now;
  // cpu user nice system idle iowait irq softirq steal, in ticks (proc(5)). Interrupts count as
  // neither own nor stolen time, because they may serve this job.
  std::ifstream file("/proc/stat");
  std::string name;
  double user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, soft = 0, steal = 0;
  if (file >> name >> user >> nice >> system >> idle >> wait >> irq >> soft >> steal) {
    const double tick = 1.0 / double(sysconf(_SC_CLK_TCK));
    now.busy_s = (user + nice + system) * tick;
    now.steal_s = steal * tick;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  auto microseconds = [](const timeval& t) { return int64_t(t.tv_sec) * 1'000'000 + t.tv_usec; };
  now.own_s =
      double(world_.sum(microseconds(usage.ru_utime) + microseconds(usage.ru_stime))) * 1e-6;
  return now;
}

double StolenTime::since_last() {
  Reading before = last_;
  last_ = read();
  double others = (last_.busy_s - before.busy_s) - (last_.own_s - before.own_s);
  double stolen = last_.steal_s - before.steal_s + (one_host_ ? std::max(0.0, others) : 0.0);
  return double(world_.max(stolen));
}

bool StolenTime::is_much(double stolen_s, double step_s) {
  const double cpus = double(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  return stolen_s > std::max(0.03 * step_s * cpus, 0.015 * cpus);  // 1.5 ticks of each CPU
}

}  // namespace host
