// SPDX-License-Identifier: Apache-2.0
// Makes the machine of one rank faulty. A test loads this library before the C library of the ranks
// (LD_PRELOAD).
//   MACHINE=RANK:FAULT     the rank (each rank for -1) has this fault; several are separated by ","
//     sum        it adds a wrong value to one element of each sum of floats over MPI
//     block      it sends a wrong element in each all-gather of floats
//     slow=N     its main thread takes N times as long between two readings of the steady clock
//     clock=S    its wall clock is S seconds ahead
//     nolocks    its file system has no locks
//     thread=N   its N-th thread cannot start, counted while a file of the pattern MACHINE_WHEN
//     exists
//   MACHINE_HOST=NAME      the environment variable NAME holds the name of the host; tests with
//     several nodes on one machine set it on each node
//   MACHINE_OF=HOST        MACHINE applies on the host of this name only
#include <dlfcn.h>
#include <fcntl.h>
#include <glob.h>
#include <mpi.h>
#include <pthread.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "rank.hpp"

namespace {

struct Faults {
  bool sum = false, block = false, no_locks = false;
  double slow = 0, clock_s = 0;
  int thread = 0;
  std::string host, when;

  Faults() {
    auto text = [](const char* name) {
      return std::string(std::getenv(name) ? std::getenv(name) : "");
    };
    when = text("MACHINE_WHEN");
    if (const std::string name = text("MACHINE_HOST"); !name.empty()) host = text(name.c_str());
    if (const std::string only = text("MACHINE_OF"); !only.empty() && only != host) return;
    const std::string own = std::string(own_rank() ? own_rank() : "");
    std::string left = text("MACHINE");
    while (!left.empty()) {
      const std::string one = left.substr(0, left.find(','));
      left.erase(0, one.size() + 1);
      const size_t colon = one.find(':'), equals = one.find('=');
      if (one.substr(0, colon) != own && one.substr(0, colon) != "-1") continue;
      const std::string word = one.substr(colon + 1, equals - colon - 1);
      const double number = equals == one.npos ? 0 : std::atof(one.c_str() + equals + 1);
      if (word == "sum")
        sum = true;
      else if (word == "block")
        block = true;
      else if (word == "slow")
        slow = number;
      else if (word == "clock")
        clock_s = number;
      else if (word == "nolocks")
        no_locks = true;
      else if (word == "thread")
        thread = int(number);
      else {
        std::fprintf(stderr, "MACHINE: unknown fault %s\n", one.c_str());
        std::abort();
      }
    }
  }
};

const Faults& faults() {
  static const Faults* made = new Faults;  // never destroyed, because calls come until the very end
  return *made;
}

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

double seconds_of(const timespec& t) { return double(t.tv_sec) + 1e-9 * double(t.tv_nsec); }

// Spoils one element of `count` floats, if they are floats.
void spoil(void* data, int count, MPI_Datatype type) {
  if (type == MPI_FLOAT && count > 3) static_cast<float*>(data)[3] += 1;
}

}  // namespace

// NOLINTBEGIN: the names and types of C libraries
extern "C" int clock_gettime(clockid_t which, timespec* now) {
  static auto real = next<int (*)(clockid_t, timespec*)>("clock_gettime");
  thread_local double last_s = 0;
  if (which == CLOCK_MONOTONIC && faults().slow > 1 && ::getpid() == ::gettid()) {
    real(which, now);
    const double passed = seconds_of(*now) - last_s;
    // Longer intervals are waits.
    const double end = seconds_of(*now) + (passed < 0.02 ? (faults().slow - 1) * passed : 0);
    while (real(which, now) == 0 && seconds_of(*now) < end) {
    }
    last_s = seconds_of(*now);
    return 0;
  }
  const int result = real(which, now);
  if (which == CLOCK_REALTIME) now->tv_sec += time_t(faults().clock_s);
  return result;
}

extern "C" int pthread_create(pthread_t* made, const pthread_attr_t* how, void* (*work)(void*),
                              void* argument) noexcept {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static auto real = next<Create>("pthread_create");
  static std::atomic<int> seen{0};
  glob_t files{};
  const bool counts = faults().thread > 0 && ::glob(faults().when.c_str(), 0, nullptr, &files) == 0;
  if (counts) ::globfree(&files);
  if (counts && ++seen == faults().thread) return EAGAIN;
  return real(made, how, work, argument);
}

extern "C" int gethostname(char* name, size_t size) noexcept {
  static auto real = next<int (*)(char*, size_t)>("gethostname");
  if (faults().host.empty()) return real(name, size);
  std::snprintf(name, size, "%s", faults().host.c_str());
  return 0;
}

static int lock_or(const char* name, int file, int command, void* argument) {
  if (command == F_SETLK && faults().no_locks) {
    errno = ENOLCK;
    return -1;
  }
  return next<int (*)(int, int, ...)>(name)(file, command, argument);
}
#define FORWARD_FCNTL(name)                         \
  extern "C" int name(int file, int command, ...) { \
    va_list list;                                   \
    va_start(list, command);                        \
    void* argument = va_arg(list, void*);           \
    va_end(list);                                   \
    return lock_or(#name, file, command, argument); \
  }
FORWARD_FCNTL(fcntl)
FORWARD_FCNTL(fcntl64)

extern "C" int MPI_Iallreduce(const void* send, void* recv, int count, MPI_Datatype type, MPI_Op op,
                              MPI_Comm comm, MPI_Request* request) {
  if (faults().sum && send == MPI_IN_PLACE) spoil(recv, count, type);
  return PMPI_Iallreduce(send, recv, count, type, op, comm, request);
}
extern "C" int MPI_Ireduce_scatter_block(const void* send, void* recv, int count, MPI_Datatype type,
                                         MPI_Op op, MPI_Comm comm, MPI_Request* request) {
  if (faults().sum) spoil(const_cast<void*>(send), count, type);
  return PMPI_Ireduce_scatter_block(send, recv, count, type, op, comm, request);
}
extern "C" int MPI_Iallgather(const void* send, int sends, MPI_Datatype type, void* recv,
                              int receives, MPI_Datatype into, MPI_Comm comm,
                              MPI_Request* request) {
  if (faults().block && send != MPI_IN_PLACE) spoil(const_cast<void*>(send), sends, type);
  return PMPI_Iallgather(send, sends, type, recv, receives, into, comm, request);
}
// NOLINTEND
