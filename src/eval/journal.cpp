// SPDX-License-Identifier: Apache-2.0
#include "eval/journal.hpp"

#include <algorithm>
#include <cstring>

#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/together.hpp"

namespace eval {
namespace {

constexpr int64_t kNumber = sizeof(int64_t);
constexpr int64_t kHead = 2 * kNumber;  // bytes before a record's payload
constexpr char kOther = '!';            // begins find()'s result for a journal of another identity

void put_number(std::string& out, int64_t value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_text(std::string& out, std::string_view text) {
  put_number(out, int64_t(text.size()));
  out += text;
}

int64_t number_at(std::string_view bytes, int64_t at) {
  int64_t value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::string record_of(std::string_view payload) {
  std::string out;
  put_number(out, int64_t(payload.size()));
  put_number(out, int64_t(base::xxh3(payload)));
  out += payload;
  return out;
}

// Returns the names of the lines that differ: "weights, options".
std::string difference(std::string_view found, std::string_view wanted) {
  const auto has = base::split(found, '\n'), wants = base::split(wanted, '\n');
  std::vector<std::string> names;
  for (const std::string& line : wants)
    if (std::ranges::find(has, line) == has.end()) names.push_back(line.substr(0, line.find('=')));
  return names.empty() ? "format" : base::join(names, ", ");
}

}  // namespace

std::string Journal::text_of(const Identity& identity) {
  std::string text = "evaluation journal 1\n";
  for (const auto& [name, value] : identity) text += fmt::format("{}={}\n", name, value);
  return text;
}

Journal::Journal(comm::Comm& world, std::string folder, std::string label, const Identity& identity)
    : world_(world), folder_(std::move(folder)), label_(std::move(label)) {
  const std::string text = text_of(identity);
  try {
    agree(comm::together(world_, [&] { return find(text); }));
    comm::together(world_, [&] { open(text); });
  } catch (const base::Error& e) {
    fail(e.what());
  }
}

// Reads all files. Returns a line "N STAGE" for each stage whose first N examples were found. If
// the identity differs, returns kOther and the names of what differs.
std::string Journal::find(const std::string& identity) {
  names_ = io::list_directory(folder_);
  for (size_t f = 0; f < names_.size(); ++f)
    if (const std::string other = read_file(f, identity); !other.empty()) return kOther + other;
  std::string out;
  for (auto& [stage, entries] : stages_) {
    std::ranges::stable_sort(entries, {}, &Entry::position);
    const auto alike = [](const Entry& a, const Entry& b) { return a.position == b.position; };
    entries.erase(std::unique(entries.begin(), entries.end(), alike), entries.end());
    int64_t n = 0;
    while (n < int64_t(entries.size()) && entries[size_t(n)].position == n) ++n;
    out += fmt::format("{} {}\n", n, stage);
  }
  return out;
}

// Returns the names of what differs in the identity; "" if it is equal.
std::string Journal::read_file(size_t f, const std::string& identity) {
  const io::File file(folder_ + "/" + names_[f], io::File::Mode::read);
  const int64_t end = file.size();
  std::string payload;
  int64_t at = 0;
  while (end - at >= kHead) {
    char head[kHead];
    file.read_at(head, kHead, at);
    const int64_t bytes = number_at({head, size_t(kHead)}, 0);
    if (bytes < 0 || bytes > end - at - kHead) break;
    payload.resize(size_t(bytes));
    file.read_at(payload.data(), bytes, at + kHead);
    if (int64_t(base::xxh3(payload)) != number_at({head, size_t(kHead)}, kNumber)) break;
    if (at > 0)
      index(f, at + kHead, payload);
    else if (payload != identity)
      return difference(payload, identity);
    at += kHead + bytes;
  }
  if (names_[f] == std::to_string(world_.rank())) own_bytes_ = at;
  return "";
}

// Notes the places of a record's examples. The record's lengths are right, because its checksum is.
void Journal::index(size_t file, int64_t offset, std::string_view payload) {
  int64_t at = kNumber + number_at(payload, 0);
  std::vector<Entry>& entries = stages_[std::string(payload.substr(kNumber, size_t(at - kNumber)))];
  while (at < int64_t(payload.size())) {
    const Entry entry{number_at(payload, at), offset + at + 2 * kNumber,
                      number_at(payload, at + kNumber), file};
    entries.push_back(entry);
    at += 2 * kNumber + entry.bytes;
  }
}

// Ranks may see different lengths of files on a network file system: only what all ranks see
// counts.
void Journal::agree(const std::vector<std::string>& found) {
  for (const std::string& text : found)
    if (text.starts_with(kOther)) {
      base::log::line("{} begins anew: its journal has other {}", label_, text.substr(1));
      stages_.clear();
      own_bytes_ = 0;
      comm::on_first(world_, [&] {
        io::remove_tree(folder_);
        return std::string();
      });
      return;
    }
  std::map<std::string, size_t> seen;
  for (const std::string& text : found)
    for (const std::string& line : base::split(text, '\n')) {
      const size_t blank = line.find(' ');
      if (blank == line.npos) continue;
      const int64_t n = std::stoll(line);
      const std::string stage = line.substr(blank + 1);
      int64_t& least = complete_.try_emplace(stage, n).first->second;
      least = std::min(least, n);
      ++seen[stage];
    }
  std::erase_if(complete_, [&](const auto& one) { return seen[one.first] < found.size(); });
}

void Journal::open(const std::string& identity) {
  io::make_directories(folder_);
  file_ = io::File(folder_ + "/" + std::to_string(world_.rank()), io::File::Mode::append);
  if (file_.size() > own_bytes_) file_.truncate(own_bytes_);
  if (own_bytes_ == 0) file_.append(record_of(identity));
}

void Journal::fail(const std::string& problem) {
  const std::string text = fmt::format(
      "{}: {}; the evaluation goes on, and begins anew if it is cut off", label_, problem);
  if (world_.rank() == 0)
    base::log::warning("{}", text);
  else
    base::log::line("{}", text);
  failed_ = true;
  complete_.clear();
  file_ = {};
}

int64_t Journal::begin(const std::string& stage, int64_t examples, const Take& take) {
  stage_ = stage;
  record_.clear();
  const auto agreed = complete_.find(stage);
  const int64_t n = agreed == complete_.end() ? 0 : std::min(agreed->second, examples);
  if (n == 0) return 0;
  const std::vector<Entry> entries = std::move(stages_[stage]);
  std::vector<std::string> mine;
  try {
    comm::together(world_, [&] {
      std::vector<io::File> files;
      for (const std::string& name : names_)
        files.emplace_back(folder_ + "/" + name, io::File::Mode::read);
      for (int64_t p = world_.rank(); p < n; p += world_.size()) {
        const Entry& entry = entries[size_t(p)];
        mine.emplace_back(size_t(entry.bytes), '\0');
        files[entry.file].read_at(mine.back().data(), entry.bytes, entry.offset);
      }
    });
  } catch (const base::Error& e) {
    fail(e.what());
    return 0;
  }
  base::log::line("{} goes on: {} of {} {} are taken over", label_, n, examples, stage);
  for (size_t i = 0; i < mine.size(); ++i)
    take(int64_t(i) * world_.size() + world_.rank(), mine[i]);
  return n;
}

void Journal::add(int64_t position, std::string_view bytes) {
  if (failed_) return;
  put_number(record_, position);
  put_text(record_, bytes);
}

void Journal::write() {
  if (record_.empty() || failed_) return;
  std::string payload;
  put_text(payload, stage_);
  payload += record_;
  record_.clear();
  try {
    file_.append(record_of(payload));
  } catch (const base::Error& e) {
    fail(e.what());
  }
}

bool Journal::finish() {
  const int64_t failed = world_.sum(int64_t(failed_));
  if (world_.rank() == 0 && failed > 0 && !failed_)
    base::log::warning("{}: {} ranks could not keep a journal; their logs say why", label_, failed);
  file_ = {};
  return failed == 0;
}

}  // namespace eval
