// SPDX-License-Identifier: Apache-2.0
// The log. Rank 0 writes the run's lines to stdout. Other ranks write only warnings, which start
// with "rank=N level=...", and errors. With a run directory each rank also writes its lines to
// logs/rankNNNNN.log, and all ranks write warnings to logs/warnings.txt.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

namespace base::log {

// Opens the files in `directory`, which must exist. Before that, lines go to the terminal only.
void open_files(const std::string& directory);
void close_files();
// Opens this rank's file again if it was removed.
void keep_files(const std::string& directory);

void write_line(const std::string& text);     // to stdout (rank 0 only) and the rank's file
void write_warning(const std::string& text);  // to stdout, with rank and level, and the files
void write_error(const std::string& text);    // to stderr and the rank's file

template <class... Args>
void line(fmt::format_string<Args...> format, Args&&... args) {
  write_line(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  write_warning(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write_error(fmt::format(format, std::forward<Args>(args)...));
}

int warnings_so_far();

}  // namespace base::log
