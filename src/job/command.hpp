// SPDX-License-Identifier: Apache-2.0
// Runs a shell command beside this process, until a time limit at most. If this process ends, so
// does the command.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace job {

struct Command {
  std::string text;                           // for /bin/sh
  std::vector<std::string> environment = {};  // "NAME=value"; empty: this process's environment
  std::string input = {};                     // what it reads from its standard input
  double limit_s = 60;
  double grace_s = 2;  // from TERM, after the limit, to KILL
};

struct CommandEnd {
  enum class How { exited, killed, late, quit, not_started };
  How how = How::exited;
  int number = 0;  // exit code, signal, or errno if it was not started
  double seconds = 0;
  bool good() const { return how == How::exited && number == 0; }
  std::string text() const;  // "exit 3", "no end within 60 s: it was killed"
};

// Ends a command and all that it has started if this process ends first, for whatever reason.
class CommandGuard {
 public:
  CommandGuard() = default;
  CommandGuard(const CommandGuard&) = delete;
  ~CommandGuard();
  // Guards this group of processes, and no other one; 0: none.
  void watch(pid_t group);

 private:
  void start();
  int pipe_ = -1;  // the guard acts when this pipe closes
  pid_t process_ = -1;
};

// Runs the command to its end. The processes that it leaves in its group end with it. `take` gets
// its output, errors included. `quits` is called often; once it returns true, the command is
// killed. Any thread may call this function.
CommandEnd run_command(const Command& command, const std::function<void(std::string_view)>& take,
                       const std::function<bool()>& quits, CommandGuard* guard = nullptr);

}  // namespace job
