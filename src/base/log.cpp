// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

#include <fcntl.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>

#include "base/error.hpp"
#include "base/log_limits.hpp"
#include "base/plain_nan.hpp"

namespace base::log {
namespace {

struct Sinks {
  std::shared_ptr<spdlog::logger> out, err, file, warnings;
};

Sinks& sinks() {
  static Sinks s = [] {
    Sinks made;
    made.out =
        std::make_shared<spdlog::logger>("out", std::make_shared<spdlog::sinks::stdout_sink_mt>());
    made.err =
        std::make_shared<spdlog::logger>("err", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    for (auto& l : {made.out, made.err}) {
      l->set_pattern("%v");
      l->flush_on(spdlog::level::info);
    }
    return made;
  }();
  return s;
}

std::atomic<int> g_warnings{0};

// Says on the console that a file lacks lines, at most once a minute. A log that cannot be written,
// for example on a full disk, must neither stop a run nor fill the console.
void log_lost_lines(const std::string& what) {
  static EverySeconds minute(60);
  if (!minute.now()) return;
  sinks().out->info("rank={} level=warning step={} log: {}", where().rank, where().step, what);
}

// A file whose lines wait in memory while the disk is full. If only a part of a line fits, the rest
// is written when there is room.
class WaitingSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit WaitingSink(const std::string& path) : path_(path) {
    std::error_code problem;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), problem);
    file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file_ < 0) spdlog::throw_spdlog_ex("cannot open " + path, errno);
  }
  WaitingSink(const WaitingSink&) = delete;
  WaitingSink& operator=(const WaitingSink&) = delete;
  ~WaitingSink() override {
    write();
    ::close(file_);
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    if (waiting_.size() + line.size() > kMost)
      log_lost_lines(
          path_ +
          ": no room on the disk; new lines appear on the console, but are lost to this file");
    else
      waiting_.append(line.data(), line.size());
    write();
  }
  void flush_() override {}

 private:
  static constexpr size_t kMost = size_t{16} << 20;  // bytes that wait

  void write() {
    size_t done = 0;
    while (done < waiting_.size()) {
      const ssize_t n = ::write(file_, waiting_.data() + done, waiting_.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        log_lost_lines(
            fmt::format("{}: cannot write: {}; lines are kept in memory until there is "
                        "room again",
                        path_, std::strerror(errno)));
        break;
      }
      done += size_t(n);
    }
    waiting_.erase(0, done);
  }

  std::string path_, waiting_;
  int file_ = -1;
};

std::shared_ptr<spdlog::logger> file_logger(const std::string& name, const std::string& path) {
  auto l = std::make_shared<spdlog::logger>(name, std::make_shared<WaitingSink>(path));
  l->set_pattern("%Y-%m-%dT%H:%M:%S.%e %v");
  return l;
}

std::string own_file(const std::string& directory) {
  return fmt::format("{}/rank{:05}.log", directory, where().rank);
}

}  // namespace

void open_files(const std::string& directory) {
  sinks().file = file_logger("file", own_file(directory));
  sinks().warnings = file_logger("warnings", directory + "/warnings.txt");
}

void keep_files(const std::string& directory) {
  std::error_code unknown;
  if (std::filesystem::exists(own_file(directory), unknown) || unknown) return;
  try {
    open_files(directory);  // also creates the directory
  } catch (const spdlog::spdlog_ex& e) {
    log_lost_lines(e.what());
  }
}

void close_files() {
  sinks().file.reset();
  sinks().warnings.reset();
}

void write_line(const std::string& line) {
  const std::string text = plain_nan(line);
  if (where().rank == 0) sinks().out->info(text);
  if (sinks().file) sinks().file->info(text);
}

void write_warning(const std::string& text) {
  ++g_warnings;
  Where w = where();
  std::string full =
      fmt::format("rank={} level=warning step={} {}", w.rank, w.step, plain_nan(text));
  sinks().out->info(full);
  if (sinks().file) sinks().file->info(full);
  if (sinks().warnings) sinks().warnings->info(full);
}

void write_error(const std::string& text) {
  const std::string full = "error: " + plain_nan(text);
  sinks().err->info(full);
  if (sinks().file) sinks().file->info(full);
}

int warnings_so_far() { return g_warnings; }

}  // namespace base::log
