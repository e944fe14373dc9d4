// SPDX-License-Identifier: Apache-2.0
// The long groups of a metrics.h5 that is being written. Their rows so far come from the file
// before it, and newer ones from memory. Each column is one piece of the file.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "io/h5.hpp"
#include "records/stored_rows.hpp"

namespace records {

class LongFile {
 public:
  static constexpr const char* kSteps = "step";
  struct Column {
    std::string group, name;  // kSteps: the group's steps
    int64_t rows = 0, place = 0;
  };

  LongFile(const StoredRows& stored, const MetricGroups& groups);
  bool empty() const { return groups_.empty(); }
  bool has(const std::string& group) const { return groups_.contains(group); }
  std::vector<Column>& columns() { return columns_; }
  const std::vector<Column>& columns() const { return columns_; }
  // Makes the dataset of a column, without its numbers.
  static void place(io::H5File& file, Column& column, const std::string& dataset);
  // Writes the file: its structure and all other groups are `image`.
  void write(const std::string& path, const std::string& image) const;
  // Returns the rows of the new file. They leave the memory.
  StoredRows take(const std::string& path, MetricGroups& groups) const;

 private:
  const StoredRows& stored_;
  const MetricGroups& memory_;
  std::set<std::string> groups_;
  std::vector<Column> columns_;
};

// Writes the lines of all rows to a new file, which replaces `path`.
void write_lines(const std::string& path, const StoredRows& stored, const MetricGroups& groups);

}  // namespace records
