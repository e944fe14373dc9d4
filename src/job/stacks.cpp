// SPDX-License-Identifier: Apache-2.0
#include "job/stacks.hpp"

#include <dirent.h>
#include <execinfo.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "job/symbols.hpp"

namespace job {
namespace {

constexpr int kFrames = 64, kThreads = 512;

// The handler writes here, because it may not allocate.
struct Answer {
  std::atomic<pid_t> thread{0};
  std::atomic<int> frames{-1};  // -1: no answer yet
  void* addresses[kFrames];
};
std::array<Answer, kThreads>& answers() {
  static std::array<Answer, kThreads> memory;
  return memory;
}

int stack_signal() { return SIGRTMIN + 6; }

void on_stack_signal(int) {
  const int error = errno;
  const pid_t self = ::gettid();
  for (Answer& a : answers())
    if (a.thread.load() == self) {
      if (a.frames.load() < 0) a.frames = backtrace(a.addresses, kFrames);
      break;
    }
  errno = error;
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::vector<pid_t> other_threads() {
  std::vector<pid_t> out;
  const std::unique_ptr<DIR, int (*)(DIR*)> all(::opendir("/proc/self/task"), ::closedir);
  while (dirent* entry = all ? ::readdir(all.get()) : nullptr)
    if (const pid_t tid = std::atoi(entry->d_name); tid > 0 && tid != ::gettid())
      out.push_back(tid);
  return out;
}

// The state stands behind the name, which may hold spaces and brackets.
char state_letter(const std::string& stat) {
  const size_t end = stat.rfind(')');
  return end == stat.npos || end + 2 >= stat.size() ? '\0' : stat[end + 2];
}

const char* word_for(char state) {
  switch (state) {
    case 'R':
      return "running";
    case 'S':
      return "sleeping";
    case 'D':
      return "waiting for a device or file system";
    case 'T':
      return "stopped";
    case 't':
      return "stopped by a debugger";
    case 'Z':
      return "dead";
    default:
      return "unknown";
  }
}

}  // namespace

void prepare_stacks() {
  void* warm_up[2];
  backtrace(warm_up, 2);  // the first call loads a library
  answers();
  // On the signal stack: products keep data below the stack pointer (see catch_stop_signals).
  struct sigaction action {};
  action.sa_handler = on_stack_signal;
  action.sa_flags = SA_ONSTACK | SA_RESTART;
  sigaction(stack_signal(), &action, nullptr);
}

std::string collect_stacks() {
  const std::vector<pid_t> threads = other_threads();
  const size_t count = std::min(threads.size(), answers().size());
  for (size_t i = 0; i < count; ++i) {
    answers()[i].frames = -1;
    answers()[i].thread = threads[i];
    ::syscall(SYS_tgkill, ::getpid(), threads[i], stack_signal());
  }
  auto all_answered = [&] {
    for (size_t i = 0; i < count; ++i)
      if (answers()[i].frames < 0) return false;
    return true;
  };
  for (base::Stopwatch watch; !all_answered() && watch.seconds() < 1;)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const Symbols symbols;
  std::string text;
  for (size_t i = 0; i < threads.size(); ++i) {
    const std::string place = fmt::format("/proc/self/task/{}", threads[i]);
    text += fmt::format("thread {} {}\n", threads[i], first_line(place + "/comm"));
    const int frames = i < count ? answers()[i].frames.load() : -1;
    if (frames < 0) text += fmt::format("  does not answer: {}\n", state_in_proc(place));
    // The first frames are the handler and the signal's return.
    for (int f = 2; f < frames; ++f)
      text += fmt::format("  {}\n", symbols.name_of(answers()[i].addresses[f]));
  }
  for (size_t i = 0; i < count; ++i) answers()[i].thread = 0;
  return text;
}

std::string state_in_proc(const std::string& place) {
  const char letter = state_letter(first_line(place + "/stat"));
  if (!letter) return "";
  std::string text = fmt::format("{} ({})", letter, word_for(letter));
  if (const std::string where = first_line(place + "/wchan"); !where.empty() && where != "0")
    text += ", in " + where;
  const std::string call = first_line(place + "/syscall");
  if (!call.empty() && call[0] >= '0' && call[0] <= '9')
    text += ", system call " + call.substr(0, call.find(' '));
  return text;
}

char state_of_process(pid_t process) {
  return state_letter(first_line(fmt::format("/proc/{}/stat", process)));
}

}  // namespace job
