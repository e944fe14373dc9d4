// SPDX-License-Identifier: Apache-2.0
#include "records/long_file.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "records/metric_history.hpp"
#include "records/tensor_rows.hpp"

namespace records {
namespace {

// Returns the length of a file as its superblock states it, which is of version 2.
int64_t stated_bytes(const std::string& image) {
  constexpr size_t kVersion = 8, kBytesOfAddress = 9, kEnd = 28;
  CHECK(image.size() >= kEnd + 8 && image[kVersion] == 2 && image[kBytesOfAddress] == 8,
        "metrics.h5 has a superblock that is not known");
  int64_t end = 0;
  std::memcpy(&end, image.data() + kEnd, sizeof end);
  return end;
}

const MetricSeries& series_in(const MetricGroups& groups, const std::string& group) {
  static const MetricSeries none;
  const auto found = groups.find(group);
  return found == groups.end() ? none : found->second;
}

// Replaces a file by what `write` writes.
template <class Write>
void replace_file(const std::string& path, bool durable, Write write) {
  const std::string temporary = path + ".tmp";
  try {
    io::File file(temporary, io::File::Mode::create);
    write(file);
    if (durable) file.sync();
    file.close();
    io::rename_file(temporary, path);
  } catch (...) {
    io::remove_file(temporary);
    throw;
  }
  if (durable) io::sync_directory(io::parent_of(path));
}

}  // namespace

LongFile::LongFile(const StoredRows& stored, const MetricGroups& groups)
    : stored_(stored), memory_(groups) {
  std::set<std::string> names;
  for (const auto& [name, group] : stored.groups()) names.insert(name);
  for (const auto& [name, series] : groups)
    if (!is_histogram(name)) names.insert(name);
  for (const std::string& name : names) {
    const MetricSeries& series = series_in(groups, name);
    const int64_t before = stored.rows(name), rows = before + int64_t(series.steps.size());
    if (rows <= kLongRows && before == 0) continue;
    groups_.insert(name);
    columns_.push_back({name, kSteps, rows});
    std::set<std::string> columns;
    for (const auto& [column, values] : series.columns) columns.insert(column);
    if (before > 0)
      for (const auto& [column, place] : stored.groups().at(name).columns) columns.insert(column);
    for (const std::string& column : columns) columns_.push_back({name, column, rows});
  }
}

void LongFile::place(io::H5File& file, Column& column, const std::string& dataset) {
  const io::H5Type type = column.name == kSteps ? io::H5Type::i64 : io::H5Type::f64;
  column.place = file.create_contiguous(dataset, type, {column.rows});
}

void LongFile::write(const std::string& path, const std::string& image) const {
  int64_t bytes = std::max(int64_t(image.size()), stated_bytes(image));
  for (const Column& c : columns_) bytes = std::max(bytes, c.place + 8 * c.rows);
  replace_file(path, false, [&](io::File& file) {
    file.truncate(bytes);
    file.write_at(image.data(), int64_t(image.size()), 0);
    for (const Column& c : columns_) {
      const int64_t place = c.place + stored_.copy(c.group, c.name, file, c.place);
      const MetricSeries& series = series_in(memory_, c.group);
      const auto count = int64_t(series.steps.size());
      if (c.name == kSteps) {
        file.write_at(series.steps.data(), 8 * count, place);
        continue;
      }
      const auto column = series.columns.find(c.name);
      const std::vector<double> none(column == series.columns.end() ? size_t(count) : 0,
                                     std::numeric_limits<double>::quiet_NaN());
      file.write_at((none.empty() ? column->second : none).data(), 8 * count, place);
    }
  });
}

StoredRows LongFile::take(const std::string& path, MetricGroups& groups) const {
  StoredRows::Groups found;
  for (const Column& c : columns_) {
    StoredRows::Group& group = found[c.group];
    group.rows = c.rows;
    (c.name == kSteps ? group.steps : group.columns[c.name]) = c.place;
  }
  StoredRows stored(path, std::move(found));
  for (const std::string& name : groups_) groups[name] = {};
  return stored;
}

void write_lines(const std::string& path, const StoredRows& stored, const MetricGroups& groups) {
  if (stored.empty())
    io::write_file_atomically(path, lines_of(groups));
  else
    replace_file(path, true, [&](io::File& file) { append_lines(stored, groups, file); });
}

}  // namespace records
