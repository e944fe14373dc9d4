// SPDX-License-Identifier: Apache-2.0
#include "records/metric_history.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "base/log.hpp"
#include "io/h5.hpp"
#include "records/tensor_rows.hpp"

namespace records {
namespace {

using Entry = MetricHistory::Entry;
using Starts = std::map<int64_t, int64_t>;  // attempt -> step from which it trained

int64_t attempt_of(const MetricValues& start) {
  for (const auto& [name, value] : start)
    if (name == "attempt" && value >= 1) return int64_t(value);
  return 1;
}

// True if an attempt that began at `start` wrote a row of this step again, or abandoned the row.
// A run that starts over evaluates at step 0 again.
bool goes_before(int64_t start, int64_t step) { return start < step || start == 0; }

// Returns the attempt that wrote a row, by the steps at which attempts began.
int64_t writer_of(const Starts& starts, int64_t step) {
  int64_t writer = 1;
  for (const auto& [attempt, start] : starts)
    if (goes_before(start, step)) writer = attempt;
  return writer;
}

void sort_by_attempt(std::vector<Entry>& entries) {
  auto place = [](const Entry& e) {
    int kind = e.row.group == kStartRows ? 0 : e.row.group == kTrainRows ? 1 : 2;
    return std::tuple(e.attempt, kind != 0, e.row.step, kind);
  };
  std::stable_sort(entries.begin(), entries.end(),
                   [&](const Entry& a, const Entry& b) { return place(a) < place(b); });
}

void read_lines(const std::string& path, MetricHistory& history, Starts& starts) {
  if (!io::exists(path)) return;
  history.text = io::read_file(path);
  int64_t number = 0;
  for (size_t begin = 0; begin < history.text.size();) {
    size_t end = std::min(history.text.find('\n', begin), history.text.size());
    const std::string line = history.text.substr(begin, end - begin);
    ++number;
    if (std::optional<MetricRow> row = metric_row_of(line)) {
      if (row->group == kStartRows) {
        history.last_attempt = std::max(history.last_attempt, attempt_of(row->values));
        starts[history.last_attempt] = row->step;
      }
      history.entries.push_back({std::move(*row), line + "\n", history.last_attempt, false, false});
    } else {
      history.no_rows.push_back({line + "\n", number, end == history.text.size()});
    }
    begin = end + 1;
  }
}

MetricGroups read_h5(const std::string& path) {
  MetricGroups groups;
  io::H5File file = io::H5File::open(path);
  for (const std::string& dataset : file.datasets()) {
    const size_t slash = dataset.rfind('/');
    const std::string group = dataset.substr(0, slash), name = dataset.substr(slash + 1);
    if (group.empty()) continue;
    if (name == "step") {
      groups[group].steps = file.read<int64_t>(dataset);
      continue;
    }
    if (is_of_buckets(group, name)) {
      if (name == "counts") read_buckets(file, group, groups[group]);
      continue;
    }
    auto attribute = file.attribute(dataset, "name");
    const std::string* real = attribute ? std::get_if<std::string>(&*attribute) : nullptr;
    groups[group].columns[real ? *real : name] = file.read<double>(dataset);
  }
  for (const auto& [group, series] : groups)
    for (const auto& [name, column] : series.columns)
      if (column.size() != series.steps.size())
        throw io::Failure(fmt::format("{}: group {} has {} rows, but its metric {} has {}", path,
                                      group, series.steps.size(), name, column.size()),
                          0);
  return groups;
}

MetricGroups read_h5_if_there(const std::string& directory) {
  const std::string path = directory + "/metrics.h5";
  if (!io::exists(path)) return {};
  try {
    return read_h5(path);
  } catch (const io::Failure& e) {
    const std::string aside = free_abandoned_name(directory, "h5");
    base::log::warning("{}; it was renamed to {} and is made again from metrics.jsonl", e.what(),
                       aside);
    io::rename_file(path, aside);
    return {};
  }
}

bool has_same_row(const MetricGroups& groups, const MetricRow& row) {
  auto found = groups.find(row.group);
  if (found == groups.end()) return false;
  const std::vector<int64_t>& steps = found->second.steps;
  const auto at = std::lower_bound(steps.begin(), steps.end(), row.step);
  if (at == steps.end() || *at != row.step) return false;
  std::map<std::string, double> values;
  for (const auto& [name, value] : row.values)
    if (!std::isnan(value)) values[name] = value;
  const MetricValues there = found->second.values(size_t(at - steps.begin()));
  return values == std::map<std::string, double>(there.begin(), there.end());
}

// Decides about a row of metrics.jsonl that comes after an attempt's start, if only metrics.h5
// has that start. Either the start line is lost and the row is that attempt's, or metrics.jsonl
// is an older copy and the attempt abandoned the row.
void settle(Entry& e, const MetricGroups& groups, const Starts& of_h5, const Starts& of_jsonl,
            bool lost_lines) {
  bool open = false;
  for (const auto& [attempt, from] : of_h5)
    open |= attempt > e.attempt && !of_jsonl.contains(attempt) && goes_before(from, e.row.step);
  if (!open || e.row.group == kStartRows) return;
  const bool start_is_lost = lost_lines || e.attempt == 0 || has_same_row(groups, e.row);
  if (start_is_lost)
    e.attempt = writer_of(of_h5, e.row.step);
  else
    e.left = true;
}

// Adds the rows of metrics.h5 that metrics.jsonl lacks.
void add_rows_of_h5(const MetricGroups& groups, MetricHistory& history, Starts& starts) {
  Starts of_h5;
  if (auto found = groups.find(kStartRows); found != groups.end())
    for (size_t i = 0; i < found->second.steps.size(); ++i)
      of_h5[attempt_of(found->second.values(i))] = found->second.steps[i];
  for (Entry& e : history.entries) settle(e, groups, of_h5, starts, !history.no_rows.empty());
  std::map<std::string, std::set<int64_t>> known;  // steps by group; for start rows the attempts
  for (const Entry& e : history.entries)
    if (!e.left)
      known[e.row.group].insert(e.row.group == kStartRows ? attempt_of(e.row.values) : e.row.step);
  for (const auto& [attempt, step] : of_h5) {
    starts.insert({attempt, step});
    history.last_attempt = std::max(history.last_attempt, attempt);
  }
  bool any = false;
  for (const auto& [group, series] : groups)
    for (size_t i = 0; i < series.steps.size(); ++i) {
      const int64_t step = series.steps[i];
      const bool start = group == kStartRows;
      if (!start && known[group].contains(step)) continue;
      MetricRow row{group, step, series.values(i)};
      if (start && known[group].contains(attempt_of(row.values))) continue;
      const int64_t attempt = start ? attempt_of(row.values) : writer_of(of_h5, step);
      // metrics.h5 may be older than the start of an attempt that went back to before this row.
      bool left = false;
      for (const auto& [later, from] : starts)
        left |= !start && later > attempt && goes_before(from, step);
      std::string line = line_of(row);
      history.entries.push_back({std::move(row), std::move(line), attempt, left, true});
      any = true;
    }
  if (any) sort_by_attempt(history.entries);
}

}  // namespace

MetricHistory read_metric_history(const std::string& directory) {
  MetricHistory history;
  Starts starts;
  read_lines(directory + "/metrics.jsonl", history, starts);
  MetricGroups groups = read_h5_if_there(directory);
  const bool has_rows = history.entries.size() > 0;
  if (groups.empty() && has_rows)
    base::log::line("metrics  metrics.h5 is made again from the {} rows of metrics.jsonl",
                    history.entries.size());
  add_rows_of_h5(groups, history, starts);
  for (Entry& e : history.entries) e.attempt = std::max<int64_t>(e.attempt, 1);
  return history;
}

std::string only_in_h5(const MetricHistory& history) {
  struct Span {
    int64_t rows = 0, first = 0, last = 0;
  };
  std::map<std::string, Span> groups;
  for (const Entry& e : history.entries) {
    if (!e.only_h5 || e.left) continue;
    const std::string& group = e.row.group;
    Span& s = groups[is_histogram(group) ? "/histograms" : is_rms(group) ? "/rms" : group];
    s.first = s.rows ? std::min(s.first, e.row.step) : e.row.step;
    s.last = s.rows ? std::max(s.last, e.row.step) : e.row.step;
    ++s.rows;
  }
  std::string out;
  for (const auto& [group, s] : groups)
    out += fmt::format("{}{} {} (steps {} to {})", out.empty() ? "" : ", ", group.substr(1), s.rows,
                       s.first, s.last);
  return out;
}

std::string free_abandoned_name(const std::string& directory, const std::string& ending) {
  std::string path = fmt::format("{}/metrics.abandoned.{}", directory, ending);
  for (int number = 2; io::exists(path); ++number)
    path = fmt::format("{}/metrics.abandoned.{}.{}", directory, number, ending);
  return path;
}

std::string lines_of(const MetricGroups& groups) {
  MetricHistory history;
  Starts starts;
  add_rows_of_h5(groups, history, starts);
  std::string text;
  for (const Entry& e : history.entries) text += e.line;
  return text;
}

}  // namespace records
