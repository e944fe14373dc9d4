// SPDX-License-Identifier: Apache-2.0
#include "job/failure_report.hpp"

#include <execinfo.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>

#include "base/error.hpp"
#include "base/plain_nan.hpp"
#include "base/shortage.hpp"
#include "base/thread_scope.hpp"
#include "device/live_buffers.hpp"
#include "host/node_memory.hpp"
#include "host/surroundings.hpp"
#include "job/flight.hpp"
#include "job/watchdog.hpp"

namespace job {
namespace {

// A signal handler may not allocate.
char g_path[4096] = "", g_spare[4096] = "";

constexpr int kFatal[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

const char* name_of(int signal) {
  switch (signal) {
    case SIGSEGV:
      return "SIGSEGV";
    case SIGBUS:
      return "SIGBUS";
    case SIGFPE:
      return "SIGFPE";
    case SIGILL:
      return "SIGILL";
    default:
      return "SIGABRT";
  }
}

// Opens the report for the first rank that asks. The spare file, whose room is reserved, becomes
// the report. If the spare file is gone, makes a new file. Returns a negative number for others.
int open_report() {
  if (g_spare[0] && ::rename(g_spare, g_path) == 0) return ::open(g_path, O_WRONLY | O_CLOEXEC);
  return ::open(g_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
}

// Writes `text`, which ends with a new line. Returns false if another rank was faster.
bool put(const char* text, size_t bytes) {
  if (!g_path[0]) return true;
  const int file = open_report();
  if (file < 0) return errno != EEXIST;
  ssize_t written = ::write(file, text, bytes);  // a part of it on a full disk
  const char* memory = base::shortage_text();
  if (written == ssize_t(bytes))
    written += std::max<ssize_t>(0, ::write(file, memory, std::strlen(memory)));
  (void)!::ftruncate(file, std::max<ssize_t>(written, 0));
  ::fsync(file);
  ::close(file);
  return true;
}

// Sources of lines about a shortage of memory.
size_t describe_main_thread_line(char* buffer, size_t size) {
  char what[512];
  const size_t length = describe_main_thread(what, sizeof what);
  const auto end =
      fmt::format_to_n(buffer, size, "memory   was asked for while the main thread did: {}\n",
                       std::string_view(what, length));
  return std::min(size, end.size);
}

size_t describe_limits(char* buffer, size_t size) {
  const host::NodeMemory node = host::node_memory();
  const auto end = fmt::format_to_n(
      buffer, size,
      "memory   of the node, MiB: {} of {} are left; this job may have {} there, and has {}\n",
      node.available_kib >> 10, node.total_kib >> 10, host::most_memory_bytes() >> 20,
      host::group_memory_bytes() >> 20);
  return std::min(size, end.size);
}

struct HostName {
  char text[256] = "?";
  HostName() { ::gethostname(text, sizeof text - 1); }
};

// Formats the report without allocating: fmt's compiled formats write to the caller's buffer.
size_t format_line(char* buffer, size_t size, int exit_code, const char* cause, int rank,
                   const char* host) {
  base::Where w = base::where();
  auto end =
      fmt::format_to_n(buffer, size - 1, "rank={} of {} host={} step={} phase={} exit={}: {}", rank,
                       w.ranks, host, w.step, w.phase, exit_code, cause);
  size_t used = std::min(size - 1, end.size);
  buffer[used] = '\n';
  return used + 1;
}

[[noreturn]] void end_now(const char* cause, base::Exit code = base::Exit::internal) {
  // Adds what this thread did, which is lost when the thread ends.
  char what[1024];
  const auto named = fmt::format_to_n(what, sizeof what - 1, "{}, in ", cause);
  size_t length = std::min(sizeof what - 1, named.size);
  length += describe_main_thread(what + length, sizeof what - 1 - length);
  what[length] = '\0';
  char line[4096];
  size_t bytes =
      format_line(line, sizeof line, int(code), what, base::where().rank, HostName().text);
  put(line, bytes);
  (void)!::write(STDERR_FILENO, line, bytes);
  const char* memory = base::shortage_text();
  (void)!::write(STDERR_FILENO, memory, std::strlen(memory));
  void* frames[48];
  backtrace_symbols_fd(frames, backtrace(frames, 48), STDERR_FILENO);
  ask_for_stacks();
  ::_exit(int(code));
}

void on_fatal(int signal) {
  for (int s : kFatal)
    std::signal(s, SIG_DFL);  // a second fault inside the handler ends the process
  char cause[64] = "signal ";
  std::strncat(cause, name_of(signal), sizeof cause - 8);
  end_now(cause);
}

[[noreturn]] void on_terminate() {
  static char cause[2048] = "std::terminate";
  if (std::exception_ptr current = std::current_exception()) try {
      std::rethrow_exception(current);
    } catch (const std::bad_alloc&) {
      end_now("uncaught: std::bad_alloc, out of memory", base::Exit::mesh);
    } catch (const std::exception& e) {
      std::snprintf(cause, sizeof cause, "uncaught: %s", e.what());
    } catch (...) {
    }
  end_now(cause);
}

}  // namespace

void catch_fatal_signals() {
  void* warm_up[2];
  backtrace(warm_up, 2);  // the first call loads a library
  base::register_main_thread();
  base::add_shortage_source(describe_main_thread_line);
  base::add_shortage_source(device::describe_live_buffers);
  base::add_shortage_source(describe_limits);
  base::note_failing_new();
  struct sigaction action {};
  action.sa_handler = on_fatal;
  action.sa_flags = SA_ONSTACK;
  for (int s : kFatal) sigaction(s, &action, nullptr);
  // Writing to a closed console or beyond the user's file size limit then fails with an error code,
  // which the callers handle.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  std::set_terminate(on_terminate);
}

void set_report_file(const std::string& path, const std::string& spare) {
  std::strncpy(g_path, path.c_str(), sizeof g_path - 1);
  std::strncpy(g_spare, spare.c_str(), sizeof g_spare - 1);
}

bool write_report(int exit_code, const std::string& cause) noexcept {
  return write_report_about(base::where().rank, HostName().text, exit_code, cause);
}

bool write_report_about(int rank, const std::string& host, int exit_code,
                        const std::string& cause) noexcept {
  try {
    const std::string plain = base::plain_nan(cause);
    std::string text(plain.size() + 1024, '\0');
    text.resize(
        format_line(text.data(), text.size(), exit_code, plain.c_str(), rank, host.c_str()));
    return put(text.data(), text.size());
  } catch (...) {
    return true;
  }
}

}  // namespace job
