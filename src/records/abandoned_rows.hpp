// SPDX-License-Identifier: Apache-2.0
// metrics.abandoned.jsonl: rows after the step from which a later attempt continued, and lines that
// are not rows. Only metrics.cpp includes this header.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "records/metric_history.hpp"

namespace records {

// The lines of the file with an identifier of each, so that no row is added twice.
class Abandoned {
 public:
  explicit Abandoned(std::string path);

  template <class Work>
  void for_rows(Work work) {
    for (const std::string& line : base::split(text_, '\n')) {
      if (line.empty()) continue;
      std::optional<MetricRow> row = metric_row_of(line);
      int64_t attempt = 1;
      if (row)
        for (const auto& [name, value] : row->values)
          if (name == "attempt") attempt = int64_t(value);
      known_.insert(row ? id_of(*row, attempt) : line + "\n");
      if (row) work(*row, attempt);
    }
  }
  // Returns false if the file has the line already.
  bool add(const std::string& id, const std::string& line);
  void add_row(const MetricRow& row, int64_t attempt, const std::string& line) {
    moved_ += add(id_of(row, attempt), line_with_attempt(line, attempt));
  }
  int64_t moved() const { return moved_; }  // rows that were added
  void write() const;                       // if anything was added

 private:
  static std::string id_of(const MetricRow& row, int64_t attempt);

  std::string path_, text_, added_;
  std::unordered_set<std::string> known_;
  int64_t moved_ = 0;
};

void warn_of_no_rows(const std::string& path, const std::vector<MetricHistory::NoRow>& lines);

// The lines of metrics.jsonl that stay, from a place on. Those before the first change stay in
// the file.
struct KeptLines {
  int64_t end = 0;     // of the lines that stay in the file
  std::string behind;  // lines that stay after the first change
  bool changed = false;

  void add(const std::string& line, int64_t place, bool whole);
  // Leaves out what does not stay. In most cases that is the end of the file, which is cut.
  void replace_in(const std::string& path) const;
};

}  // namespace records
