// SPDX-License-Identifier: Apache-2.0
#include "job/command.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/clock.hpp"

namespace job {
namespace {

constexpr int kSlice_ms = 20;       // between two looks at a command
constexpr double kAfterKill_s = 1;  // a process that a dead file system holds cannot be killed
constexpr double kGuardEnds_s = 1;
// A command that writes without end must not cost a core: later output is read this slowly.
constexpr int64_t kQuickBytes = 1 << 20, kSlowBytes = 1 << 16;

// What the guard does: it remembers the newest group, and ends it when the pipe is closed.
constexpr char kGuard[] =
    "trap '' TERM HUP INT; g=0; while read -r line; do g=$line; done; [ \"$g\" = 0 ] && exit; "
    "kill -s TERM -- \"-$g\"; sleep 2; kill -s KILL -- \"-$g\"";

struct Descriptor {
  int number = -1;
  Descriptor() = default;
  Descriptor(const Descriptor&) = delete;
  ~Descriptor() { close(); }
  void close() {
    if (number >= 0) ::close(std::exchange(number, -1));
  }
};

bool open_pipe(Descriptor& read, Descriptor& write) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) < 0) return false;
  read.number = ends[0];
  write.number = ends[1];
  return true;
}

// Starts /bin/sh in a group of its own, with clean signals and no other open file. Negative numbers
// of files mean none. Returns errno, or 0.
int start_shell(pid_t& process, const std::string& text, const std::vector<std::string>& variables,
                int input, int output) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  if (input < 0)
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  else
    posix_spawn_file_actions_adddup2(&files, input, STDIN_FILENO);
  for (const int to : {STDOUT_FILENO, STDERR_FILENO})
    if (output < 0)
      posix_spawn_file_actions_addopen(&files, to, "/dev/null", O_WRONLY, 0);
    else
      posix_spawn_file_actions_adddup2(&files, output, to);
#if defined(__GLIBC_PREREQ)
#if __GLIBC_PREREQ(2, 34)
  posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
#endif
#endif
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::vector<char*> environment;
  for (const std::string& v : variables) environment.push_back(const_cast<char*>(v.c_str()));
  environment.push_back(nullptr);
  const char* words[] = {"sh", "-c", text.c_str(), nullptr};
  const int problem =
      ::posix_spawn(&process, "/bin/sh", &files, &attributes, const_cast<char**>(words),
                    variables.empty() ? environ : environment.data());
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  return problem;
}

// Makes a file without a name that holds the text. Unlike a pipe it takes any length at once.
void hold(const std::string& text, Descriptor& file) {
  if (text.empty()) return;
  file.number = ::memfd_create("input", MFD_CLOEXEC);
  if (file.number >= 0 && ::write(file.number, text.data(), text.size()) == ssize_t(text.size()))
    ::lseek(file.number, 0, SEEK_SET);
}

// True if the process has ended. It is not reaped yet, so no other process can have its number.
bool has_ended(pid_t process) {
  siginfo_t info{};
  return ::waitid(P_PID, id_t(process), &info, WEXITED | WNOHANG | WNOWAIT) < 0 ||
         info.si_pid == process;
}

// What a command writes.
class Output {
 public:
  Output(int file, const std::function<void(std::string_view)>& take) : file_(file), take_(take) {
    ::fcntl(file, F_SETFL, O_NONBLOCK);
  }
  // Passes on what comes within a slice of time.
  void wait() {
    if (read_ > kQuickBytes) {
      std::this_thread::sleep_for(std::chrono::milliseconds(kSlice_ms));
      pass_on(kSlowBytes);
      return;
    }
    pollfd wait{file_, POLLIN, 0};
    ::poll(&wait, closed_ ? 0 : 1, kSlice_ms);
    pass_on(kQuickBytes);
  }
  // Passes on what is left of a command that has ended.
  void finish() { pass_on(kQuickBytes); }

 private:
  void pass_on(int64_t most) {
    char piece[1 << 14];
    for (int64_t now = 0; now < most && !closed_;) {
      const ssize_t n = ::read(file_, piece, sizeof piece);
      if (n < 0 && errno == EINTR) continue;
      closed_ = n == 0;
      if (n <= 0) return;
      take_({piece, size_t(n)});
      now += n;
      read_ += n;
    }
  }

  const int file_;
  const std::function<void(std::string_view)>& take_;
  int64_t read_ = 0;
  bool closed_ = false;  // the command has closed its end
};

// Returns true if the process ended within this time.
bool ends_within(pid_t process, double seconds, Output& output) {
  for (const base::Stopwatch watch; !has_ended(process); output.wait())
    if (watch.seconds() >= seconds) return false;
  return true;
}

}  // namespace

std::string CommandEnd::text() const {
  switch (how) {
    case How::exited:
      return fmt::format("exit {}", number);
    case How::killed:
      return fmt::format("signal {} ({})", number, ::strsignal(number));
    case How::late:
      return fmt::format("no end within {:.6g} s: it was killed", seconds);
    case How::quit:
      return "it was killed with the job";
    default:
      return fmt::format("it cannot be started: {}", std::strerror(number));
  }
}

CommandGuard::~CommandGuard() {
  if (process_ < 0) return;
  ::close(pipe_);
  for (const base::Stopwatch watch; watch.seconds() < kGuardEnds_s;) {
    if (::waitpid(process_, nullptr, WNOHANG) != 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void CommandGuard::start() {
  Descriptor read, write;
  if (!open_pipe(read, write) || start_shell(process_, kGuard, {}, read.number, -1) != 0) return;
  pipe_ = std::exchange(write.number, -1);
}

void CommandGuard::watch(pid_t group) {
  if (pipe_ < 0) start();
  const std::string line = fmt::format("{}\n", group);
  if (pipe_ >= 0) (void)!::write(pipe_, line.data(), line.size());
}

CommandEnd run_command(const Command& command, const std::function<void(std::string_view)>& take,
                       const std::function<bool()>& quits, CommandGuard* guard) {
  using How = CommandEnd::How;
  const base::Stopwatch watch;
  Descriptor input, read, write;
  if (!open_pipe(read, write)) return {How::not_started, errno};
  hold(command.input, input);
  pid_t process = -1;
  const int problem =
      start_shell(process, command.text, command.environment, input.number, write.number);
  write.close();
  if (problem != 0) return {How::not_started, problem};
  if (guard) guard->watch(process);

  CommandEnd end;
  Output output(read.number, take);
  for (; !has_ended(process); output.wait()) {
    if (quits()) end.how = How::quit;
    if (watch.seconds() >= command.limit_s) end.how = How::late;
    if (end.how == How::exited) continue;
    if (end.how == How::late) {
      ::kill(-process, SIGTERM);
      ends_within(process, command.grace_s, output);
    }
    ::kill(-process, SIGKILL);
    ends_within(process, kAfterKill_s, output);
    break;
  }
  output.finish();
  ::kill(-process, SIGKILL);  // the processes that it has left
  int status = 0;
  ::waitpid(process, &status, WNOHANG);
  if (guard) guard->watch(0);
  end.seconds = end.how == How::late ? command.limit_s : watch.seconds();
  if (end.how != How::exited) return end;
  if (WIFSIGNALED(status)) return {How::killed, WTERMSIG(status), end.seconds};
  end.number = WEXITSTATUS(status);
  return end;
}

}  // namespace job
