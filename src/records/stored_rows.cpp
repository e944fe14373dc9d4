// SPDX-License-Identifier: Apache-2.0
#include "records/stored_rows.hpp"

#include <algorithm>
#include <limits>

#include "records/metric_history.hpp"
#include "records/metric_starts.hpp"

namespace records {
namespace {

constexpr int64_t kNumberBytes = 8;
constexpr int64_t kPieceRows = int64_t{1} << 16;  // that are copied together
constexpr int64_t kLineRows = int64_t{1} << 12;   // whose lines are made together

template <class T>
std::vector<T> numbers_at(const io::File& file, int64_t place, int64_t begin, int64_t end) {
  std::vector<T> numbers(size_t(end - begin));
  file.read_at(numbers.data(), (end - begin) * kNumberBytes, place + begin * kNumberBytes);
  return numbers;
}

}  // namespace

const StoredRows::Group& StoredRows::of(const std::string& group) const {
  const auto found = groups_.find(group);
  CHECK(found != groups_.end(), "the rows of {} are not stored", group);
  return found->second;
}

int64_t StoredRows::rows(const std::string& group) const {
  const auto found = groups_.find(group);
  return found == groups_.end() ? 0 : found->second.rows;
}

int64_t StoredRows::step(const std::string& group, int64_t row) const {
  return numbers_at<int64_t>(file_, of(group).steps, row, row + 1).front();
}

int64_t StoredRows::last_step(const std::string& group) const {
  const int64_t count = rows(group);
  return count ? step(group, count - 1) : -1;
}

double StoredRows::value(const std::string& group, const std::string& column, int64_t row) const {
  const auto found = of(group).columns.find(column);
  if (found == of(group).columns.end()) return std::numeric_limits<double>::quiet_NaN();
  return numbers_at<double>(file_, found->second, row, row + 1).front();
}

bool StoredRows::has(const std::string& group, int64_t step) const {
  return up_to(group, step) > up_to(group, step - 1);
}

int64_t StoredRows::up_to(const std::string& group, int64_t step) const {
  int64_t low = 0, high = rows(group);
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (this->step(group, middle) <= step)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

void StoredRows::cut(int64_t step) {
  for (auto& [name, group] : groups_) group.rows = up_to(name, step);
}

MetricSeries StoredRows::read(const std::string& group, int64_t begin, int64_t end) const {
  MetricSeries series;
  series.steps = numbers_at<int64_t>(file_, of(group).steps, begin, end);
  for (const auto& [name, place] : of(group).columns)
    series.columns[name] = numbers_at<double>(file_, place, begin, end);
  return series;
}

MetricSeries StoredRows::take(const std::string& group) {
  MetricSeries series = read(group, 0, rows(group));
  groups_.erase(group);
  return series;
}

int64_t StoredRows::copy(const std::string& group, const std::string& column, io::File& to,
                         int64_t place) const {
  const int64_t count = rows(group);
  if (count == 0) return 0;
  const std::map<std::string, int64_t>& columns = of(group).columns;
  const auto found = columns.find(column);
  const bool steps = column == "step", there = steps || found != columns.end();
  std::vector<double> piece;
  for (int64_t begin = 0; begin < count; begin += kPieceRows) {
    const int64_t end = std::min(count, begin + kPieceRows);
    if (there)  // the bytes are those of steps, too
      piece = numbers_at<double>(file_, steps ? of(group).steps : found->second, begin, end);
    else
      piece.assign(size_t(end - begin), std::numeric_limits<double>::quiet_NaN());
    to.write_at(piece.data(), (end - begin) * kNumberBytes, place + begin * kNumberBytes);
  }
  return count * kNumberBytes;
}

MetricSeries rows_between(const MetricSeries& series, int64_t after, int64_t last) {
  const auto begin = std::upper_bound(series.steps.begin(), series.steps.end(), after);
  const auto end = std::upper_bound(begin, series.steps.end(), last);
  const auto first = begin - series.steps.begin(), stop = end - series.steps.begin();
  MetricSeries found;
  found.steps.assign(begin, end);
  for (const auto& [name, column] : series.columns)
    found.columns[name].assign(column.begin() + first, column.begin() + stop);
  return found;
}

void append_lines(const StoredRows& stored, const MetricGroups& groups, io::File& file) {
  auto append = [&](int64_t after, int64_t last) {
    MetricGroups part;
    for (const auto& [name, group] : stored.groups())
      part[name] = stored.read(name, stored.up_to(name, after), stored.up_to(name, last));
    for (const auto& [name, series] : groups) {
      if (name == kStartRows) continue;
      const MetricSeries rows = rows_between(series, after, last);
      MetricSeries& all = part[name];
      for (size_t i = 0; i < rows.steps.size(); ++i) all.add(rows.steps[i], rows.values(i), true);
    }
    file.append(lines_of(part));
  };
  const auto starts = groups.find(kStartRows);
  const MetricStarts attempts(starts == groups.end() ? MetricSeries{} : starts->second);
  int64_t after = -1;
  for (const MetricStarts::Attempt& attempt : attempts.all()) {
    file.append(line_of({kStartRows, attempt.step, attempt.values}));
    while (after < attempt.last) {
      // The next rows of the longest group bound the part.
      int64_t last = attempt.last;
      for (const auto& [name, group] : stored.groups())
        if (const int64_t row = stored.up_to(name, after) + kLineRows; row < group.rows)
          last = std::min(last, stored.step(name, row));
      append(after, last);
      after = last;
    }
  }
}

}  // namespace records
