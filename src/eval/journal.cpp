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
// How find()'s result begins, for a journal of this identity and of another one.
constexpr char kSame = '=', kOther = '!';

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
    stages_.clear();
    fail(e.what());
  }
}

// Reads this rank's share of the files. Returns kSame and the stages with their examples. If the
// identity differs, returns kOther and the names of what differs.
std::string Journal::find(const std::string& identity) {
  for (const std::string& name : io::list_directory(folder_)) {
    if (name.size() > 9 || name.find_first_not_of("0123456789") != name.npos) continue;
    const int64_t file = std::stoll(name);
    if (file % world_.size() != world_.rank()) continue;
    if (const std::string other = read_file(file, identity); !other.empty()) return kOther + other;
  }
  std::string out(1, kSame);
  for (const auto& [stage, entries] : stages_) {
    put_text(out, stage);
    put_text(out, {reinterpret_cast<const char*>(entries.data()), entries.size() * sizeof(Entry)});
  }
  stages_.clear();
  return out;
}

// Returns the names of what differs in the identity; "" if it is equal.
std::string Journal::read_file(int64_t number, const std::string& identity) {
  const io::File file(path_of(number), io::File::Mode::read);
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
      index(number, at + kHead, payload);
    else if (payload != identity)
      return difference(payload, identity);
    at += kHead + bytes;
  }
  if (number == world_.rank()) own_bytes_ = at;
  return "";
}

// Notes the places of a record's examples. The record's lengths are right, because its checksum is.
void Journal::index(int64_t file, int64_t offset, std::string_view payload) {
  int64_t at = kNumber + number_at(payload, 0);
  Entries& entries = stages_[std::string(payload.substr(kNumber, size_t(at - kNumber)))];
  while (at < int64_t(payload.size())) {
    const int64_t bytes = number_at(payload, at + kNumber), begin = at + 2 * kNumber;
    entries.push_back({number_at(payload, at), file, offset + begin, bytes,
                       base::xxh3(payload.substr(size_t(begin), size_t(bytes)))});
    at = begin + bytes;
  }
}

void Journal::agree(const std::vector<std::string>& found) {
  for (const std::string& text : found)
    if (text.starts_with(kOther)) {
      base::log::line("{} begins anew: its journal has other {}", label_, text.substr(1));
      own_bytes_ = 0;
      comm::on_first(world_, [&] {
        io::remove_tree(folder_);
        return std::string();
      });
      return;
    }
  for (const std::string& text : found) merge(std::string_view(text).substr(1));
  for (auto& [stage, entries] : stages_) {
    std::ranges::stable_sort(entries, {}, &Entry::position);
    const auto alike = [](const Entry& a, const Entry& b) { return a.position == b.position; };
    entries.erase(std::unique(entries.begin(), entries.end(), alike), entries.end());
    size_t n = 0;
    while (n < entries.size() && entries[n].position == int64_t(n)) ++n;
    entries.resize(n);
  }
}

// Adds the examples that a rank has found.
void Journal::merge(std::string_view found) {
  auto next = [&] {
    const auto bytes = size_t(number_at(found, 0));
    const std::string_view text = found.substr(kNumber, bytes);
    found.remove_prefix(kNumber + bytes);
    return text;
  };
  while (!found.empty()) {
    Entries& entries = stages_[std::string(next())];
    const std::string_view bytes = next();
    const size_t before = entries.size();
    entries.resize(before + bytes.size() / sizeof(Entry));
    std::memcpy(entries.data() + before, bytes.data(), bytes.size());
  }
}

void Journal::open(const std::string& identity) {
  io::make_directories(folder_);
  file_ = io::File(path_of(world_.rank()), io::File::Mode::append);
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
  file_ = {};
}

// Reads this rank's examples of those at [0, n). Returns the position of the first one that is not
// as it was found, or n: on a network file system, ranks may see different lengths of a file, and
// only what all ranks see counts.
int64_t Journal::read_share(const Entries& entries, int64_t n,
                            std::vector<std::string>& share) const {
  std::map<int64_t, io::File> files;
  for (int64_t p = world_.rank(); p < n; p += world_.size()) {
    const Entry& entry = entries[size_t(p)];
    io::File& file = files[entry.file];
    if (!file.is_open()) file = io::File(path_of(entry.file), io::File::Mode::read);
    std::string bytes(size_t(entry.bytes), '\0');
    try {
      file.read_at(bytes.data(), entry.bytes, entry.offset);
    } catch (const io::Failure&) {
      return p;
    }
    if (base::xxh3(bytes) != entry.hash) return p;
    share.push_back(std::move(bytes));
  }
  return n;
}

int64_t Journal::begin(const std::string& stage, int64_t examples, const Take& take) {
  stage_ = stage;
  record_.clear();
  const Entries entries = std::move(stages_[stage]);
  int64_t n = std::min(int64_t(entries.size()), examples);
  if (n == 0) return 0;
  std::vector<std::string> share;
  try {
    const auto read = [&] { return std::to_string(read_share(entries, n, share)); };
    for (const std::string& good : comm::together(world_, read))
      n = std::min<int64_t>(n, std::stoll(good));
  } catch (const base::Error& e) {
    fail(e.what());
    return 0;
  }
  if (n == 0) return 0;
  base::log::line("{} goes on: {} of {} {} are taken over", label_, n, examples, stage);
  int64_t p = world_.rank();
  for (const std::string& bytes : share) {
    if (p < n) take(p, bytes);
    p += world_.size();
  }
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
