// SPDX-License-Identifier: Apache-2.0
#include "job/stacks.hpp"

#include <dirent.h>
#include <execinfo.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "job/symbols.hpp"

namespace job {
namespace {

constexpr int kFrames = 64, kThreads = 512, kWords = 4096, kLikely = 64;
// The first frames are the handler and the signal's return.
constexpr int kOwnFrames = 2;

// The handler writes here, because it may not allocate.
struct Answer {
  std::atomic<pid_t> thread{0};
  std::atomic<int> frames{-1};  // -1: no answer yet
  void* addresses[kFrames];
  int words = 0;  // of the copied stack
};
std::array<Answer, kThreads>& answers() {
  static std::array<Answer, kThreads> memory;
  return memory;
}

// Returns the memory for the stack of a thread whose frames end at once. That happens in code that
// oneDNN makes at run time, which has no tables for the unwinder. The memory begins as zeros, so it
// takes no room in the program's file.
void** copy_of_stack(const Answer& answer) {
  static void* memory[kThreads][kWords];
  return memory[&answer - answers().data()];
}

int stack_signal() { return SIGRTMIN + 6; }

void* stack_pointer(const void* context) {
  [[maybe_unused]] const auto& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  return reinterpret_cast<void*>(machine.gregs[REG_RSP]);
#elif defined(__aarch64__)
  return reinterpret_cast<void*>(machine.sp);
#else
  return nullptr;
#endif
}

// Copies the words above the stack pointer. The kernel reads them, because the stack may end before
// `kWords` words.
int copy_stack(void* from, void** to) {
  constexpr size_t kPart = 512;
  size_t words = 0;
  for (; from && words < kWords; words += kPart) {
    const iovec local{to + words, kPart * sizeof(void*)};
    const iovec remote{static_cast<void**>(from) + words, kPart * sizeof(void*)};
    const ssize_t bytes = ::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0);
    if (bytes < ssize_t(local.iov_len))
      return int(words + size_t(std::max<ssize_t>(bytes, 0)) / sizeof(void*));
  }
  return int(words);
}

void on_stack_signal(int, siginfo_t*, void* context) {
  const int error = errno;
  const pid_t self = ::gettid();
  for (Answer& a : answers())
    if (a.thread.load() == self) {
      if (a.frames.load() >= 0) break;
      const int frames = backtrace(a.addresses, kFrames);
      a.words = frames <= kOwnFrames + 1 ? copy_stack(stack_pointer(context), copy_of_stack(a)) : 0;
      a.frames = frames;
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

// The state follows the name, which may hold spaces and brackets.
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

std::string lines_of(const Answer& answer, const Symbols& symbols) {
  std::string text;
  for (int f = kOwnFrames; f < answer.frames; ++f)
    text += fmt::format("  {}\n", symbols.name_of(answer.addresses[f]));
  std::string last;
  void** const stack = copy_of_stack(answer);
  for (int w = 0, likely = 0; w < answer.words && likely < kLikely; ++w) {
    if (!symbols.may_return_to(stack[w])) continue;
    std::string name = symbols.name_of(stack[w]);
    if (name == last) continue;
    text += fmt::format("  ? {}\n", name);
    last = std::move(name);
    ++likely;
  }
  return text;
}

}  // namespace

void prepare_stacks() {
  void* warm_up[2];
  backtrace(warm_up, 2);  // the first call loads a library
  answers();
  // On the signal stack: products keep data below the stack pointer (see catch_stop_signals).
  struct sigaction action {};
  action.sa_sigaction = on_stack_signal;
  action.sa_flags = SA_ONSTACK | SA_RESTART | SA_SIGINFO;
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
    if (frames >= 0) text += lines_of(answers()[i], symbols);
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
