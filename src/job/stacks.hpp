// SPDX-License-Identifier: Apache-2.0
// What the threads of this process do: the stack of each, collected by a signal that a handler on
// the thread answers. A thread that cannot answer is described by what /proc says about it.
#pragma once

#include <sys/types.h>

#include <string>

namespace job {

// Installs the handler and readies its memory. Call it once, before collect_stacks().
void prepare_stacks();
// Returns the stacks of all threads but the caller's, as text. Waits at most a second for answers.
// For a thread in code that was made at run time, lines with "?" follow its first line. They name
// functions whose return addresses are on its stack, some perhaps from calls that have ended.
std::string collect_stacks();
// Returns what /proc says about a thread or process, "/proc/12" for example: "T (stopped), in
// do_signal_stop, system call 202". Returns "" if it is gone.
std::string state_in_proc(const std::string& place);
// Returns the letter of the state of a process: 'R', 'S', 'D', 'T', 'Z'; 0 if it is gone.
char state_of_process(pid_t process);

}  // namespace job
