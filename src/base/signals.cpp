// SPDX-License-Identifier: Apache-2.0
#include "base/signals.hpp"

#include <pthread.h>
#include <signal.h>

#include <memory>

namespace base {

void leave_signals_to_main() {
  sigset_t set;
  sigemptyset(&set);
  for (int s : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGALRM}) sigaddset(&set, s);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void make_signal_stack() {
  static constexpr size_t kBytes = 128 << 10;  // the handler formats a line and walks the stack
  struct Stack {
    std::unique_ptr<char[]> memory;
    Stack() {
      stack_t now{};
      sigaltstack(nullptr, &now);
      if (!(now.ss_flags & SS_DISABLE)) return;  // a sanitizer has set a stack
      memory.reset(new char[kBytes]);
      now = {.ss_sp = memory.get(), .ss_flags = 0, .ss_size = kBytes};
      sigaltstack(&now, nullptr);
    }
    ~Stack() {
      stack_t none{.ss_sp = nullptr, .ss_flags = SS_DISABLE, .ss_size = 0};
      if (memory) sigaltstack(&none, nullptr);
    }
  };
  static thread_local Stack stack;
  (void)stack;
}

}  // namespace base
