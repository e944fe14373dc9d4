// SPDX-License-Identifier: Apache-2.0
#include "base/process_start.hpp"

#include <unistd.h>

#include <chrono>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string>

#include "base/clock.hpp"

namespace base {

double process_start_s() {
  const double now = now_s();
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text, '\0');
  // The name of the program, in brackets, may hold blanks. The start is field 22, in ticks since
  // the machine began (proc(5)).
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  double ticks = 0;
  timespec boot{};
  constexpr double kMost_s = 600;  // a greater age comes from a clock that does not match
  if (!(fields >> ticks) || ::clock_gettime(CLOCK_BOOTTIME, &boot) != 0) return now;
  const double age_s =
      double(boot.tv_sec) + 1e-9 * double(boot.tv_nsec) - ticks / double(::sysconf(_SC_CLK_TCK));
  return age_s >= 0 && age_s < kMost_s ? now - age_s : now;
}

double unix_s(double moment_s) {
  const double unix_now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return unix_now - now_s() + moment_s;
}

}  // namespace base
