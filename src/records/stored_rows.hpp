// SPDX-License-Identifier: Apache-2.0
// Rows that metrics.h5 alone holds. A group with many rows is not kept in memory: its columns lie
// in metrics.h5, each in one piece, and single numbers of them are read by their place. The file
// stays open, so the rows remain readable if its name is removed or given to another file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "io/files.hpp"
#include "records/metric_rows.hpp"

namespace records {

inline constexpr int64_t kLongRows = int64_t{1} << 17;  // a group with more rows is long

class StoredRows {
 public:
  struct Group {
    int64_t rows = 0, steps = 0;             // number of rows; place of the column of steps
    std::map<std::string, int64_t> columns;  // places of the other columns
  };
  using Groups = std::map<std::string, Group>;

  StoredRows() = default;
  StoredRows(const std::string& path, Groups groups)
      : file_(path, io::File::Mode::read), groups_(std::move(groups)) {}

  const Groups& groups() const { return groups_; }
  bool empty() const { return groups_.empty(); }
  int64_t rows(const std::string& group) const;  // 0 for a group that is not stored
  int64_t step(const std::string& group, int64_t row) const;
  int64_t last_step(const std::string& group) const;  // -1 without rows
  double value(const std::string& group, const std::string& column, int64_t row) const;
  bool has(const std::string& group, int64_t step) const;
  // Returns the number of rows up to a step; -1 is before all steps.
  int64_t up_to(const std::string& group, int64_t step) const;
  // Forgets the rows after a step.
  void cut(int64_t step);
  // Returns rows [begin, end).
  MetricSeries read(const std::string& group, int64_t begin, int64_t end) const;
  // Returns all rows of a group, and forgets the group.
  MetricSeries take(const std::string& group);
  // Copies the column, or the steps ("step"), to a place in another file. A column that the group
  // lacks is NaN. Returns the bytes.
  int64_t copy(const std::string& group, const std::string& column, io::File& to,
               int64_t place) const;

 private:
  const Group& of(const std::string& group) const;

  io::File file_;
  Groups groups_;
};

// Returns the rows of a series with steps in (after, last].
MetricSeries rows_between(const MetricSeries& series, int64_t after, int64_t last);

// Appends the lines of all rows to a file, attempt by attempt. `groups` are the rows after those
// that are stored.
void append_lines(const StoredRows& stored, const MetricGroups& groups, io::File& file);

}  // namespace records
