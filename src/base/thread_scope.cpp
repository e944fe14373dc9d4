// SPDX-License-Identifier: Apache-2.0
#include "base/thread_scope.hpp"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "base/thread_place.hpp"

namespace base {
namespace {

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

// Takes a free place of the flight page, if there is one. The page's owner is in Thread::tid.
void take_place(const std::string& name) {
  if (thread_place()) return;
  for (FlightPage::Thread& place : flight_page().threads) {
    uint64_t free = 0;
    if (!place.tid.compare_exchange_strong(free, uint64_t(::gettid()))) continue;
    uint64_t words[2] = {};
    std::memcpy(words, name.data(), std::min(name.size(), sizeof words - 1));
    place.name[0] = words[0];
    place.name[1] = words[1];
    place.depth = place.begun = 0;
    set_thread_place(&place);
    return;
  }
}

void set_name(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
}

}  // namespace

ThreadScope::ThreadScope(const std::string& name) {
  leave_signals_to_main();
  make_signal_stack();
  set_name(name);
  take_place(name);
}

ThreadScope::~ThreadScope() {
  if (FlightPage::Thread* place = thread_place()) {
    set_thread_place(nullptr);
    place->tid = 0;
  }
}

void name_compute_thread(int number) {
  leave_signals_to_main();
  make_signal_stack();
  set_name("compute " + std::to_string(number));
}

void register_main_thread() {
  make_signal_stack();
  take_place("main");
}

}  // namespace base
