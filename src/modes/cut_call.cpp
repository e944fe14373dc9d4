// SPDX-License-Identifier: Apache-2.0
#include "modes/cut_call.hpp"

#include <algorithm>

#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "checkpoint/checksum.hpp"
#include "comm/together.hpp"

namespace modes {
namespace {

// A line of the file is a key, a blank and a row. A torn line at the end has no line break, and is
// removed, so that the next row begins a line.
constexpr const char* kRows = "/rows";

}  // namespace

CutCall::CutCall(comm::Comm& world, const std::string& out) : world_(world) {
  if (out.empty()) return;
  folder_ = out + ".partial";
  const std::string rows = comm::on_first(world_, [&] {
    if (!io::exists(folder_ + kRows)) return std::string();
    std::string text = io::read_file(folder_ + kRows);
    const size_t whole = text.rfind('\n') + 1;
    if (whole < text.size())
      io::File(folder_ + kRows, io::File::Mode::write).truncate(int64_t(whole));
    text.resize(whole);
    return text;
  });
  for (size_t at = 0, end; (end = rows.find('\n', at)) != rows.npos; at = end + 1) {
    const std::string line = rows.substr(at, end - at);
    if (const size_t blank = line.find(' '); blank != line.npos)
      rows_.emplace_back(line.substr(0, blank), line.substr(blank + 1));
  }
}

std::string CutCall::take(const std::string& key) {
  const auto row = std::ranges::find(rows_, key, &std::pair<std::string, std::string>::first);
  if (row == rows_.end()) return "";
  std::string text = row->second;
  rows_.erase(row);
  return text;
}

std::string CutCall::journal_of(const std::string& key) const { return folder_ + "/" + key; }

std::unique_ptr<eval::Journal> CutCall::open(const std::string& key, const std::string& label,
                                             const eval::Journal::Identity& identity) {
  return std::make_unique<eval::Journal>(world_, journal_of(key), label, identity);
}

void CutCall::add(const std::string& key, const std::string& row, eval::Journal& journal) {
  journal.finish();
  comm::on_first(world_, [&] {
    try {
      io::File rows(folder_ + kRows, io::File::Mode::append);
      rows.append(fmt::format("{} {}\n", key, row));
      rows.close();
      io::remove_tree(journal_of(key));
    } catch (const io::Failure& e) {
      base::log::warning("{}; this evaluation will be made again if the call is cut off", e.what());
    }
    return std::string();
  });
}

void CutCall::remove() {
  if (folder_.empty() || world_.rank() > 0) return;
  try {
    io::remove_tree(folder_);
  } catch (const io::Failure& e) {
    base::log::warning("{}; remove it yourself", e.what());
  }
}

}  // namespace modes
