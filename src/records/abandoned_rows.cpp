// SPDX-License-Identifier: Apache-2.0
#include "records/abandoned_rows.hpp"

#include <algorithm>
#include <cmath>

#include "base/log.hpp"
#include "io/files.hpp"

namespace records {

Abandoned::Abandoned(std::string path) : path_(std::move(path)) {
  if (io::exists(path_)) text_ = io::read_file(path_);
  if (!text_.empty() && text_.back() != '\n') text_ += "\n";
}

std::string Abandoned::id_of(const MetricRow& row, int64_t attempt) {
  std::vector<std::string> values;
  for (const auto& [name, value] : row.values)
    if (!std::isnan(value) && name != "attempt")
      values.push_back(fmt::format("{}={}", name, value));
  std::sort(values.begin(), values.end());
  return fmt::format("{} {} {} {}", row.group, row.step, attempt, fmt::join(values, " "));
}

bool Abandoned::add(const std::string& id, const std::string& line) {
  const bool fresh = known_.insert(id).second;
  if (fresh) added_ += line;
  return fresh;
}

void Abandoned::write() const {
  if (!added_.empty()) io::write_file_atomically(path_, text_ + added_);
}

void warn_of_no_rows(const std::string& path, const std::vector<MetricHistory::NoRow>& lines) {
  constexpr size_t kMaxListed = 5;
  std::vector<std::string> numbers;
  for (const MetricHistory::NoRow& n : lines)
    if (numbers.size() < kMaxListed)
      numbers.push_back(
          n.torn ? fmt::format("{} (torn: {} bytes without an end)", n.number, n.line.size() - 1)
                 : std::to_string(n.number));
  if (lines.size() > kMaxListed)
    numbers.push_back(fmt::format("{} more", lines.size() - kMaxListed));
  base::log::warning("{}: no valid row in line {}; moved to metrics.abandoned.jsonl", path,
                     base::join(numbers, ", "));
}

void KeptLines::add(const std::string& line, int64_t place, bool whole) {
  if (changed || !whole) {
    behind += line + "\n";
    changed = true;
  } else {
    end = place + int64_t(line.size()) + 1;
  }
}

void KeptLines::replace_in(const std::string& path) const {
  if (!changed) return;
  if (behind.empty()) {
    io::File file(path, io::File::Mode::write);
    file.truncate(end);
    file.sync();
    return;
  }
  constexpr int64_t kPiece = int64_t{8} << 20;
  const std::string temporary = path + ".tmp";
  try {
    const io::File from(path, io::File::Mode::read);
    io::File to(temporary, io::File::Mode::create);
    std::string piece;
    for (int64_t at = 0; at < end; at += int64_t(piece.size())) {
      piece.resize(size_t(std::min(kPiece, end - at)));
      from.read_at(piece.data(), int64_t(piece.size()), at);
      to.write_at(piece.data(), int64_t(piece.size()), at);
    }
    to.write_at(behind.data(), int64_t(behind.size()), end);
    to.sync();
    to.close();
    io::rename_file(temporary, path);
  } catch (...) {
    io::remove_file(temporary);
    throw;
  }
  io::sync_directory(io::parent_of(path));
}

}  // namespace records
