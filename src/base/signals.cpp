#include "base/signals.hpp"

#include <pthread.h>
#include <signal.h>

#include <initializer_list>

namespace base {

void leave_signals_to_main() {
  sigset_t set;
  sigemptyset(&set);
  for (int s : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGALRM}) sigaddset(&set, s);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

}  // namespace base
