// SPDX-License-Identifier: Apache-2.0
#include "io/waiting.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "base/clock.hpp"
#include "base/log.hpp"

namespace io {
namespace {

constexpr double kPause_s = 60;                     // between two warnings
constexpr size_t kMostOfFiles = size_t{256} << 20;  // bytes of whole files that may wait

struct Content {
  std::string bytes;
  bool durable = true;
};

// All that waits in this process.
struct Waiting {
  std::vector<WaitingLines*> lines;
  std::map<std::string, Content> files;  // by path; a newer content replaces an older one
  std::string problem;
  double warned_s = 0;
};
Waiting& waiting() {
  static Waiting all;
  return all;
}

// Warns, unless the last warning is recent.
void warn(double& warned_s, const std::string& text) {
  if (warned_s != 0 && base::now_s() - warned_s < kPause_s) return;
  base::log::warning("{}", text);
  warned_s = base::now_s();
}

// Returns "" or the problem.
std::string try_to_write(const std::string& path, const Content& content) {
  try {
    make_directories(parent_of(path));
    write_file_atomically(path, content.bytes, content.durable);
    return "";
  } catch (const Failure& e) {
    return waiting().problem = e.what();
  }
}

}  // namespace

WaitingLines::WaitingLines(std::string path, int64_t most) : path_(std::move(path)), most_(most) {
  waiting().lines.push_back(this);
}

WaitingLines::~WaitingLines() {
  std::erase(waiting().lines, this);
  if (!retry())
    base::log::warning("{}: {} bytes of its last lines could not be written: {}", path_,
                       unwritten_.size(), waiting().problem);
}

void WaitingLines::open() {
  make_directories(parent_of(path_));
  file_ = File(path_, File::Mode::append);
  length_ = file_.size();
  torn_ = false;
}

void WaitingLines::append(const std::string& lines) {
  const bool too_many = most_ > 0 && int64_t(unwritten_.size() + lines.size()) > most_;
  if (too_many && !retry()) {
    if (!std::exchange(loses_, true))
      base::log::warning(
          "{}: {} MiB wait for room on the disk, and no more are kept: lines are lost until there "
          "is room again",
          path_, unwritten_.size() >> 20);
    return;
  }
  unwritten_ += lines;
  retry();
}

bool WaitingLines::retry() {
  if (!waits()) return true;
  try {
    if (!file_.is_open()) open();
    // Leaves no partial line in the file.
    if (torn_) file_.truncate(length_);
    torn_ = true;
    file_.append(unwritten_);
  } catch (const Failure& e) {
    waiting().problem = e.what();
    try {
      if (torn_) file_.truncate(length_);
      torn_ = false;
    } catch (const Failure&) {  // tried again with the next line
    }
    warn(warned_s_, fmt::format("{}; rows are kept in memory until there is room again", e.what()));
    return false;
  }
  torn_ = false;
  length_ += int64_t(unwritten_.size());
  if (std::exchange(warned_s_, 0) != 0)
    base::log::line("disk     {} is written again: {} bytes had waited{}", path_, unwritten_.size(),
                    std::exchange(loses_, false) ? ", and lines after them are lost" : "");
  unwritten_ = {};
  return true;
}

void WaitingLines::sync() {
  if (!retry() || !file_.is_open()) return;
  try {
    file_.sync();
  } catch (const Failure& e) {
    warn(warned_s_, fmt::format("{}; its newest lines may be lost if this machine dies", e.what()));
  }
}

bool WaitingLines::keep() {
  bool gone = false;
  try {
    gone = file_.is_open() && !file_.in_place();
    if (!gone) return false;
    file_ = {};
    open();
  } catch (const Failure& e) {  // the next line tries again
    warn(warned_s_, e.what());
  }
  return gone;
}

void WaitingLines::take(File file, int64_t bytes) {
  file_ = std::move(file);
  length_ = bytes;
  unwritten_.clear();
  torn_ = false;
}

void write_or_wait(const std::string& path, const std::string& content, bool durable) {
  Waiting& all = waiting();
  all.files.erase(path);
  Content one{content, durable};
  const std::string problem = try_to_write(path, one);
  if (problem.empty()) return;
  size_t bytes = content.size();
  for (const auto& [other, kept] : all.files) bytes += kept.bytes.size();
  if (bytes > kMostOfFiles) {
    base::log::warning("{}; the file is lost: {} MiB of other files already wait for room", problem,
                       (bytes - content.size()) >> 20);
    return;
  }
  all.files[path] = std::move(one);
  warn(all.warned_s,
       fmt::format("{}; the file is kept in memory until there is room again", problem));
}

size_t write_waiting() {
  Waiting& all = waiting();
  std::erase_if(all.files, [](const auto& one) {
    const bool written = try_to_write(one.first, one.second).empty();
    if (written) base::log::line("disk     {} had waited for room and is now written", one.first);
    return written;
  });
  size_t left = all.files.size();
  for (WaitingLines* lines : all.lines) left += !lines->retry();
  return left;
}

void give_up_waiting() {
  Waiting& all = waiting();
  for (const auto& [path, content] : all.files)
    if (const std::string problem = try_to_write(path, content); !problem.empty())
      base::log::warning("{}; the file is lost", problem);
  all.files.clear();
}

void forget_waiting() {
  waiting().files.clear();
  for (WaitingLines* lines : waiting().lines) lines->forget();
}

const std::string& waiting_problem() { return waiting().problem; }

}  // namespace io
