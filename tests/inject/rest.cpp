// SPDX-License-Identifier: Apache-2.0
// Lets ranks that wait rest. Open MPI's waiting ranks poll, and call sched_yield between polls. On
// a machine with more ranks than cores they would still take their share of the cores from the
// ranks that work. Scripts in tests/run load this library before the C library (LD_PRELOAD).
#include <sched.h>
#include <unistd.h>

extern "C" int sched_yield() noexcept {
  ::usleep(100);
  return 0;
}
