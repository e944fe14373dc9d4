// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <filesystem>
#include <memory>

#include "base/error.hpp"
#include "base/log_limits.hpp"

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

// Reports lost lines on the console, at most once a minute. A log that cannot be written, for
// example on a full disk, must neither stop a run nor fill the console.
void log_lost_lines(const std::string& what) {
  static EverySeconds minute(60);
  if (!minute.now()) return;
  sinks().out->info(
      "rank={} level=warning step={} log: {}; lines are lost to the file, not to the console, "
      "until there is room again",
      where().rank, where().step, what);
}

std::shared_ptr<spdlog::logger> file_logger(const std::string& name, const std::string& path) {
  auto l = std::make_shared<spdlog::logger>(
      name, std::make_shared<spdlog::sinks::basic_file_sink_mt>(path));
  l->set_pattern("%Y-%m-%dT%H:%M:%S.%e %v");
  l->flush_on(spdlog::level::info);
  l->set_error_handler(log_lost_lines);
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

void write_line(const std::string& text) {
  if (where().rank == 0) sinks().out->info(text);
  if (sinks().file) sinks().file->info(text);
}

void write_warning(const std::string& text) {
  ++g_warnings;
  Where w = where();
  std::string full = fmt::format("rank={} level=warning step={} {}", w.rank, w.step, text);
  sinks().out->info(full);
  if (sinks().file) sinks().file->info(full);
  if (sinks().warnings) sinks().warnings->info(full);
}

void write_error(const std::string& text) {
  const std::string full = "error: " + text;
  sinks().err->info(full);
  if (sinks().file) sinks().file->info(full);
}

int warnings_so_far() { return g_warnings; }

}  // namespace base::log
