// SPDX-License-Identifier: Apache-2.0
// The log. Rank 0 writes the run's lines to stdout as they are; other ranks appear only with
// warnings and errors, which start with "rank=N level=...". With a run directory every line also
// goes to logs/rankNNNNN.log, warnings to logs/warnings.txt.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

namespace base::log {

// Starts the files; until then lines go to the terminal only. Directory must exist.
void open_files(const std::string& directory);
void close_files();
// Opens this rank's file again if it was removed.
void keep_files(const std::string& directory);

void write_line(const std::string& text);     // rank 0: stdout and file; other ranks: own file only
void write_warning(const std::string& text);  // any rank: stdout with rank and level, and the files
void write_error(const std::string& text);    // any rank: stderr and the files

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
