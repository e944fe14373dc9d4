// SPDX-License-Identifier: Apache-2.0
#include "records/long_history.hpp"

#include <algorithm>
#include <charconv>
#include <set>

#include "base/hash.hpp"
#include "base/text.hpp"
#include "io/h5.hpp"
#include "records/tensor_rows.hpp"

namespace records {
namespace {

constexpr int64_t kPieceBytes = 4096;              // that are hashed together
constexpr int64_t kEvenPieces = 32;                // over the whole file
constexpr int64_t kNearest = int64_t{64} << 10;    // from the end; others are twice as far away
constexpr int64_t kBlockBytes = int64_t{1} << 18;  // of lines that are read together

uint64_t hash_before(const io::File& file, int64_t place) {
  std::string bytes(size_t(std::min(place, kPieceBytes)), '\0');
  file.read_at(bytes.data(), int64_t(bytes.size()), place - int64_t(bytes.size()));
  return base::xxh3(bytes);
}

// Returns the end of the part of the file that is as it was; 0 without any.
int64_t unchanged(const io::File& file, const std::string& check) {
  const int64_t size = file.size();
  int64_t end = 0;
  for (const std::string& pair : base::split(check, ' ')) {
    int64_t place = 0;
    uint64_t hash = 0;
    const char* const stop = pair.data() + pair.size();
    const auto number = std::from_chars(pair.data(), stop, place);
    if (number.ec != std::errc() || number.ptr == stop) return end;
    std::from_chars(number.ptr + 1, stop, hash, 16);
    if (place > size || hash_before(file, place) != hash) return end;
    end = place;
  }
  return end;
}

// A row that is no start.
std::optional<MetricRow> step_row_of(const std::string& line) {
  std::optional<MetricRow> row = metric_row_of(line);
  if (row && row->group == kStartRows) row.reset();
  return row;
}

struct FoundRow {
  int64_t step = 0, begin = 0, end = 0;  // of a row that is no start, and its place
};

// Returns the first such row whose line begins in this part of the file.
std::optional<FoundRow> first_row(const io::File& file, int64_t begin, int64_t end) {
  const int64_t size = file.size();
  std::string text;
  for (int64_t bytes = 1 << 13; begin < end; bytes *= 4) {
    const int64_t from = std::max<int64_t>(0, begin - 1);
    text.resize(size_t(std::min(bytes, size - from)));
    file.read_at(text.data(), int64_t(text.size()), from);
    // A line that begins with the part is whole.
    size_t at = begin > 0 ? text.find('\n') : 0;
    if (begin > 0 && at != text.npos) ++at;
    while (at != text.npos && from + int64_t(at) < end) {
      const size_t stop = text.find('\n', at);
      if (stop == text.npos) break;
      if (const auto row = step_row_of(text.substr(at, stop - at)))
        return FoundRow{row->step, from + int64_t(at), from + int64_t(stop) + 1};
      at = stop + 1;
    }
    if (from + int64_t(text.size()) >= size) return {};
    if (at != text.npos && from + int64_t(at) >= end) return {};
  }
  return {};
}

// Returns the place of the first row after a step, or `end`. Steps ascend from line to line, but
// for starts.
int64_t place_after(const io::File& file, int64_t end, int64_t step) {
  int64_t low = 0, high = end;  // rows that begin before `low` are not after the step
  while (high - low > kPieceBytes) {
    const int64_t middle = low + (high - low) / 2;
    const std::optional<FoundRow> row = first_row(file, middle, high);
    if (row && row->step <= step)
      low = row->end;
    else
      high = middle;
  }
  for (int64_t place = low; true;) {
    const std::optional<FoundRow> row = first_row(file, place, end);
    if (!row) return end;
    if (row->step > step) return row->begin;
    place = row->end;
  }
}

// Returns the step of the last row that ends before `end`; -1 without any.
int64_t last_step_before(const io::File& file, int64_t end) {
  for (int64_t bytes = kBlockBytes; true; bytes *= 4) {
    const int64_t from = std::max<int64_t>(0, end - bytes);
    std::string text(size_t(end - from), '\0');
    file.read_at(text.data(), end - from, from);
    std::vector<std::string> lines = base::split(text, '\n');
    if (from > 0) lines.erase(lines.begin());  // it may be the end of a line
    lines.pop_back();                          // and this the begin of one
    for (size_t i = lines.size(); i-- > 0;)
      if (const auto row = step_row_of(lines[i])) return row->step;
    if (from == 0) return -1;
  }
}

// Reads the structure of metrics.h5 and all groups that are not long.
void read_groups(const io::H5File& file, StoredRows::Groups& stored, MetricGroups& groups) {
  std::map<std::string, std::vector<std::string>> names;
  for (const std::string& dataset : file.datasets())
    names[dataset.substr(0, dataset.rfind('/'))].push_back(dataset);
  for (const auto& [group, datasets] : names) {
    if (group.empty()) continue;
    const io::H5Info steps = file.info(group + "/step");
    const bool is_long = steps.offset >= 0 && !is_histogram(group) && steps.shape.size() == 1 &&
                         steps.shape[0] > kLongRows;
    for (const std::string& dataset : datasets) {
      const std::string name = dataset.substr(group.size() + 1);
      const auto attribute = file.attribute(dataset, "name");
      const std::string* real = attribute ? std::get_if<std::string>(&*attribute) : nullptr;
      if (is_long) {
        const io::H5Info info = file.info(dataset);
        if (info.offset < 0 || info.shape != steps.shape)
          throw io::Failure(fmt::format("{}: not a column like the others", dataset), 0);
        StoredRows::Group& g = stored[group];
        g.rows = steps.shape[0];
        (name == "step" ? g.steps : g.columns[real ? *real : name]) = info.offset;
      } else if (name == "step") {
        groups[group].steps = file.read<int64_t>(dataset);
      } else if (!is_of_buckets(group, name)) {
        groups[group].columns[real ? *real : name] = file.read<double>(dataset);
      } else if (name == "counts") {
        read_buckets(file, group, groups[group]);
      }
    }
  }
}

// Returns the last uptime_s of each attempt. Within an attempt it grows.
std::map<int64_t, double> uptimes_of(const StoredRows& stored, const MetricStarts& starts) {
  std::map<int64_t, double> found;
  int64_t before = 0;
  for (const MetricStarts::Attempt& attempt : starts.all()) {
    const int64_t end = stored.up_to(kTrainRows, attempt.last);
    if (end <= before) continue;
    if (const double s = stored.value(kTrainRows, "uptime_s", end - 1); s > 0)
      found[attempt.number] = s;
    before = end;
  }
  return found;
}

// Returns the numbers of the attempts whose starts are in these lines.
std::set<double> starts_in(const io::File& file, int64_t begin) {
  std::set<double> found;
  for_lines(file, begin, [&](const std::string& line, int64_t, bool) {
    if (!line.starts_with("{\"kind\":\"start\"")) return;
    if (const auto row = metric_row_of(line))
      for (const auto& [name, value] : row->values)
        if (name == "attempt") found.insert(value);
  });
  return found;
}

// Leaves out rows after a step, and starts that are in the lines from `begin` on.
void leave_out(LongHistory& history, const io::File& jsonl, int64_t step) {
  history.stored.cut(step);
  const std::set<double> later = starts_in(jsonl, history.begin);
  for (auto& [name, series] : history.groups) {
    if (name != kStartRows) {
      series = rows_between(series, -1, step);
      continue;
    }
    MetricSeries kept;
    const MetricStarts starts(series);
    for (const MetricStarts::Attempt& a : starts.all())
      if (!later.contains(double(a.number))) kept.add(a.step, a.values, false);
    series = kept;
  }
}

std::optional<LongHistory> read_both(const std::string& directory, int64_t step) {
  const std::string h5_path = directory + "/metrics.h5";
  LongHistory history;
  StoredRows::Groups stored;
  const io::H5File h5 = io::H5File::open(h5_path);
  const auto check = h5.attribute("/", kJsonlCheck);
  if (!check || !std::holds_alternative<std::string>(*check)) return {};
  read_groups(h5, stored, history.groups);
  if (!stored.contains(kTrainRows) || !history.groups.contains(kStartRows)) return {};
  history.stored = StoredRows(h5_path, std::move(stored));
  const io::File jsonl(directory + "/metrics.jsonl", io::File::Mode::read);
  const std::string& text = std::get<std::string>(*check);
  const int64_t end = unchanged(jsonl, text);
  if (end == 0) return {};
  const std::vector<std::string> pieces = base::split(text, ' ');
  const bool all = pieces.back().starts_with(fmt::format("{}:", end));
  // An attempt that went back has cut the file, and its start is behind the cut. Otherwise lines
  // are lost, and metrics.h5 has their rows.
  const std::set<double> later = starts_in(jsonl, end);
  const std::vector<MetricStarts::Attempt> known = MetricStarts(history.groups[kStartRows]).all();
  if (!all && (later.empty() || known.empty() || *later.rbegin() <= double(known.back().number)))
    return {};
  const int64_t newest = last_step_before(jsonl, end);
  // If the file has changed behind this part, rows of the newest step may be missing in the part.
  const int64_t last = all ? step : std::min(step, newest - 1);
  if (last < 1) return {};
  history.begin = newest > last ? place_after(jsonl, end, last) : end;
  leave_out(history, jsonl, last);
  history.uptimes = uptimes_of(history.stored, MetricStarts(history.groups[kStartRows]));
  for (const auto& [name, group] : history.stored.groups()) history.lines += group.rows;
  for (const auto& [name, series] : history.groups) history.lines += int64_t(series.steps.size());
  return history;
}

}  // namespace

std::string jsonl_check(const std::string& path, int64_t bytes) {
  std::set<int64_t> places = {bytes};
  for (int64_t i = 1; i < kEvenPieces; ++i) places.insert(bytes * i / kEvenPieces);
  for (int64_t away = kNearest; away < bytes; away *= 2) places.insert(bytes - away);
  places.erase(0);
  const io::File file(path, io::File::Mode::read);
  std::vector<std::string> pieces;
  for (const int64_t place : places)
    pieces.push_back(fmt::format("{}:{:x}", place, hash_before(file, place)));
  return base::join(pieces, " ");
}

std::optional<LongHistory> read_long_history(const std::string& directory, int64_t step) {
  if (!io::exists(directory + "/metrics.h5") || !io::exists(directory + "/metrics.jsonl"))
    return {};
  try {
    return read_both(directory, step);
  } catch (const io::Failure&) {
    return {};  // reading all rows says what is wrong
  }
}

void for_lines(
    const io::File& file, int64_t begin,
    const std::function<void(const std::string& line, int64_t place, bool whole)>& work) {
  const int64_t size = file.size();
  std::string rest, block;
  int64_t place = begin;  // of the rest
  for (int64_t at = begin; at < size; at += int64_t(block.size())) {
    block.resize(size_t(std::min(kBlockBytes, size - at)));
    file.read_at(block.data(), int64_t(block.size()), at);
    rest += block;
    size_t from = 0;
    for (size_t stop = rest.find('\n'); stop != rest.npos; stop = rest.find('\n', from)) {
      work(rest.substr(from, stop - from), place + int64_t(from), true);
      from = stop + 1;
    }
    rest.erase(0, from);
    place += int64_t(from);
  }
  if (!rest.empty()) work(rest, place, false);
}

}  // namespace records
