// SPDX-License-Identifier: Apache-2.0
// RUN/report.txt: the cause that ended the job, in one line, written by the rank that failed first:
//   rank=1 of 4 host=n0113 step=120 phase=train exit=4: [data.train] shard.tar:000123: ...
#pragma once

#include <string>

namespace job {

// From this call on, fatal signals (SEGV, BUS, FPE, ILL, ABRT) and uncaught exceptions on any
// thread end this process within moments with exit code 1. They leave a line on stderr and in the
// report. mpirun then ends the other ranks.
void catch_fatal_signals();
// Sets the file of the report. Until then reports go to stderr alone. `spare` is a file of this
// length that becomes the report, so that the report needs no room on a full disk; "" = none.
inline constexpr size_t kReportBytes = 4096;
void set_report_file(const std::string& path, const std::string& spare = {});
// Writes the report, unless another rank was faster: returns false then. Never throws.
bool write_report(int exit_code, const std::string& cause) noexcept;
// Like write_report, but about another rank, which is to blame.
bool write_report_about(int rank, const std::string& host, int exit_code,
                        const std::string& cause) noexcept;

}  // namespace job
