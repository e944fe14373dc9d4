// SPDX-License-Identifier: Apache-2.0
// Measures what the metrics of a long run take (tests/bench/long_metrics.py makes their files):
//   metrics_bench start FOLDER STEP    a start that continues from a step, a row, and the first
//                                      write of metrics.h5: seconds, bytes read, peak of memory
//   metrics_bench check FILE BYTES     prints what metrics.h5 says of so many bytes of its lines
#include <sys/resource.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>

#include "base/clock.hpp"
#include "records/metrics.hpp"

namespace {

int64_t read_mib() {
  std::ifstream file("/proc/self/io");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  return std::strtoll(text.substr(text.find("rchar: ") + 7).c_str(), nullptr, 10) >> 20;
}

double cpu_s() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

struct Begin {
  base::Stopwatch wall;
  double cpu = cpu_s();
  int64_t read = read_mib();
};

void print(const char* what, const Begin& begin) {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  std::cout << fmt::format("{:<16} {:.2f} s, {:.2f} s of the processor, {} MiB read, peak {} MiB",
                           what, begin.wall.seconds(), cpu_s() - begin.cpu, read_mib() - begin.read,
                           used.ru_maxrss >> 10)
            << std::endl;
}

void measure(const std::string& folder, int64_t step) {
  records::LogOptions options;
  options.flush_s = 1e9;
  records::DeclaredMetrics declared;
  declared["/train"] = {{"loss", "1", "a loss"}};
  const Begin start;
  auto metrics =
      std::make_unique<records::Metrics>(folder, step, 1, true, options, false, declared);
  print("start", start);
  metrics->train_row(step + 1, {{"loss", 1}});
  const Begin flush;
  metrics->flush();
  print("first metrics.h5", flush);
}

}  // namespace

int main(int count, char** words) {
  const std::string what = count == 4 ? words[1] : "";
  const int64_t number = count == 4 ? std::strtoll(words[3], nullptr, 10) : 0;
  if (what == "start")
    measure(words[2], number);
  else if (what == "check")
    std::cout << records::jsonl_check(words[2], number) << std::endl;
  else
    std::cerr << "usage: metrics_bench start FOLDER STEP | check FILE BYTES\n";
  return what == "start" || what == "check" ? 0 : 2;
}
