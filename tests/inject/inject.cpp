// SPDX-License-Identifier: Apache-2.0
// Injects a fault at a chosen file-system call. A test loads this library before the C library of
// the ranks (LD_PRELOAD). So the tests run the users' program unchanged, and HDF5's own calls count
// too.
//   INJECT_UNDER=PATH          counts, from 0 in each rank, the calls on files whose path begins
//     with PATH
//   INJECT_CALL, INJECT_ENDS   count only calls of this name, on paths with this ending
//   INJECT_TRACE=FOLDER        writes each counted call, before it is made, to FOLDER/RANK.calls as
//     "INDEX CALL PATH", and the process ID to FOLDER/RANK.pid
//   INJECT_AFTER=PATH            counts only calls after this file exists
//   INJECT_DONE=PATH             makes this file at the moment of the fault
//   INJECT=RANK:INDEX:ACTION   makes that rank (each rank for -1) do this instead of, or before,
//     its call INDEX:
//     kill        SIGKILL to itself
//     killall     SIGKILL to all ranks (needs INJECT_TRACE)
//     errno=N     the call fails with this errno; errno=N+ makes all later ones fail, too
//     garble      a pread is made, and one bit of its result changes
//     nomem       the thread's next allocation throws std::bad_alloc; the call is made
//     signal=N    the thread raises this signal; the call is made
//     overflow    the thread uses up its stack
//     slow=N      the call takes N milliseconds more; slow=N+ delays all later ones, too
//     short=N     the read or write moves at most N bytes; short=N+ limits all later ones, too
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "rank.hpp"

namespace {

enum class Action {
  none,
  kill,
  kill_all,
  error,
  garble,
  no_memory,
  signal,
  overflow,
  slow,
  shorten
};

struct Plan {
  std::string under, ends, call, trace, done, after;
  int rank = -1;  // rank of this process; -1 = not under mpirun, no action
  long at = -1;   // -1 = this rank only counts
  Action action = Action::none;
  int number = 0;  // errno or signal
  bool lasting = false;
  int trace_file = -1;
  std::atomic<long> calls{0};

  Plan() {
    auto text = [](const char* name) {
      return std::string(std::getenv(name) ? std::getenv(name) : "");
    };
    std::string own = own_rank() ? own_rank() : "", order = text("INJECT");
    under = text("INJECT_UNDER");
    trace = text("INJECT_TRACE");
    ends = text("INJECT_ENDS");
    call = text("INJECT_CALL");
    done = text("INJECT_DONE");
    after = text("INJECT_AFTER");
    if (own.empty() || under.empty()) return;
    rank = std::atoi(own.c_str());
    if (!trace.empty()) {
      trace_file = int(::syscall(SYS_openat, AT_FDCWD, (trace + "/" + own + ".calls").c_str(),
                                 O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644));
      int pid = int(::syscall(SYS_openat, AT_FDCWD, (trace + "/" + own + ".pid").c_str(),
                              O_WRONLY | O_CREAT | O_TRUNC, 0644));
      const std::string process = std::to_string(::getpid());
      ::syscall(SYS_write, pid, process.data(), process.size());
      ::syscall(SYS_close, pid);
    }
    int victim = -1;
    long index = -1;
    char what[64] = "";
    if (std::sscanf(order.c_str(), "%d:%ld:%63s", &victim, &index, what) != 3 ||
        (victim != rank && victim != -1))
      return;
    at = index;
    std::string word = what;
    size_t equals = word.find('=');
    if (equals != word.npos) {
      number = std::atoi(word.c_str() + equals + 1);
      lasting = word.back() == '+';
    }
    word = word.substr(0, equals);
    action = word == "kill"       ? Action::kill
             : word == "killall"  ? Action::kill_all
             : word == "errno"    ? Action::error
             : word == "garble"   ? Action::garble
             : word == "nomem"    ? Action::no_memory
             : word == "signal"   ? Action::signal
             : word == "overflow" ? Action::overflow
             : word == "slow"     ? Action::slow
             : word == "short"    ? Action::shorten
                                  : Action::none;
    if (action == Action::none) {
      std::fprintf(stderr, "INJECT: unknown action %s\n", what);
      std::abort();
    }
  }

  bool counts(const char* name, std::string_view path) const {
    return path.starts_with(under) && path.ends_with(ends) && (call.empty() || call == name);
  }
};

Plan& plan() {
  static Plan* made = new Plan;  // never destroyed, because calls come until the very end
  return *made;
}

thread_local bool out_of_memory = false;
thread_local bool garbled = false;
thread_local size_t most = SIZE_MAX;  // bytes that the present call may move
thread_local bool inside = false;

void kill_all(const Plan& p) {
  for (int rank = 0; rank < 64; ++rank) {
    char number[32] = "";
    int file = int(::syscall(SYS_openat, AT_FDCWD,
                             (p.trace + "/" + std::to_string(rank) + ".pid").c_str(), O_RDONLY));
    if (file < 0) break;
    ::syscall(SYS_read, file, number, sizeof number - 1);
    ::syscall(SYS_close, file);
    if (rank != p.rank) ::syscall(SYS_kill, std::atoi(number), SIGKILL);
  }
}

int use_up_stack(int depth) {
  volatile char frame[4096];
  frame[0] = char(depth);
  if (depth < 0) return 0;  // never true: the stack ends first
  return use_up_stack(depth + 1) + frame[0];
}

// True if the call must fail; errno is set then.
bool refuse(const char* call, const char* path) {
  if (inside) return false;
  inside = true;
  most = SIZE_MAX;
  Plan& p = plan();
  bool refused = false;
  if (p.rank >= 0 && path && p.counts(call, path) &&
      (p.after.empty() || ::access(p.after.c_str(), F_OK) == 0)) {
    long index = p.calls++;
    if (p.trace_file >= 0) {
      std::string line = std::to_string(index) + " " + call + " " + path + "\n";
      ::syscall(SYS_write, p.trace_file, line.data(), line.size());
    }
    if (index == p.at && !p.done.empty())
      ::syscall(SYS_close, int(::syscall(SYS_openat, AT_FDCWD, p.done.c_str(),
                                         O_WRONLY | O_CREAT | O_CLOEXEC, 0666)));
    if (index == p.at || (p.lasting && p.at >= 0 && index > p.at)) switch (p.action) {
        case Action::kill_all:
          kill_all(p);
          [[fallthrough]];
        case Action::kill:
          ::syscall(SYS_kill, ::getpid(), SIGKILL);
          break;
        case Action::error:
          errno = p.number;
          refused = true;
          break;
        case Action::garble:
          garbled = true;
          break;
        case Action::no_memory:
          out_of_memory = true;
          break;
        case Action::signal:
          ::raise(p.number);
          break;
        case Action::overflow:
          use_up_stack(0);
          break;
        case Action::slow:
          // A signal ends a sleep early but does not shorten a slow call, so sleep again.
          for (timespec left{p.number / 1000, long(p.number % 1000) * 1000000};
               ::nanosleep(&left, &left) != 0 && errno == EINTR;)
            ;
          break;
        case Action::shorten:
          most = size_t(p.number);
          break;
        case Action::none:
          break;
      }
  }
  inside = false;
  return refused;
}

bool refuse(const char* call, int file) {
  most = SIZE_MAX;
  if (plan().rank < 0) return false;
  char link[64], path[4096];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = ::readlink(link, path, sizeof path - 1);
  if (length <= 0) return false;
  path[length] = 0;
  return refuse(call, path);
}

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

// The first `most` bytes of the pieces.
struct Pieces {
  iovec first[16];
  const iovec* data;
  int count;
  Pieces(const iovec* all, int number) : data(all), count(number) {
    if (most == SIZE_MAX) return;
    count = number < 16 ? number : 16;
    size_t left = most;
    for (int i = 0; i < count; ++i) {
      first[i] = {all[i].iov_base, all[i].iov_len < left ? all[i].iov_len : left};
      left -= first[i].iov_len;
    }
    data = first;
  }
};

}  // namespace

// NOLINTBEGIN: the C library's names and types
#define FORWARD(result, name, parameters, arguments, subject) \
  extern "C" result name parameters {                         \
    static auto real = next<result(*) parameters>(#name);     \
    if (refuse(#name, subject)) return result(-1);            \
    return real arguments;                                    \
  }
#define FORWARD_OPEN(name)                                                    \
  extern "C" int name(const char* path, int flags, ...) {                     \
    static auto real = next<int (*)(const char*, int, ...)>(#name);           \
    va_list list;                                                             \
    va_start(list, flags);                                                    \
    mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(list, mode_t) : 0; \
    va_end(list);                                                             \
    if (refuse(flags & O_CREAT ? "create" : "open", path)) return -1;         \
    return real(path, flags, mode);                                           \
  }
FORWARD_OPEN(open)
FORWARD_OPEN(open64)
FORWARD(ssize_t, read, (int file, void* data, size_t size), (file, data, size < most ? size : most),
        file)
#define FORWARD_PREAD(name, offset)                                                       \
  extern "C" ssize_t name(int file, void* data, size_t size, offset at) {                 \
    static auto real = next<ssize_t (*)(int, void*, size_t, offset)>(#name);              \
    if (refuse(#name, file)) return -1;                                                   \
    ssize_t got = real(file, data, size < most ? size : most, at);                        \
    if (std::exchange(garbled, false) && got > 0) static_cast<char*>(data)[got / 2] ^= 4; \
    return got;                                                                           \
  }
FORWARD_PREAD(pread, off_t)
FORWARD_PREAD(pread64, off64_t)
FORWARD(ssize_t, write, (int file, const void* data, size_t size),
        (file, data, size < most ? size : most), file)
#define FORWARD_PWRITE(name, offset)                                           \
  FORWARD(ssize_t, name, (int file, const void* data, size_t size, offset at), \
          (file, data, size < most ? size : most, at), file)
FORWARD_PWRITE(pwrite, off_t)
FORWARD_PWRITE(pwrite64, off64_t)
#define FORWARD_PIECES(name, offset)                                             \
  extern "C" ssize_t name(int file, const iovec* data, int count, offset at) {   \
    static auto real = next<ssize_t (*)(int, const iovec*, int, offset)>(#name); \
    if (refuse(#name, file)) return -1;                                          \
    Pieces pieces(data, count);                                                  \
    return real(file, pieces.data, pieces.count, at);                            \
  }
FORWARD_PIECES(preadv, off_t)
FORWARD_PIECES(preadv64, off64_t)
FORWARD_PIECES(pwritev, off_t)
FORWARD_PIECES(pwritev64, off64_t)
FORWARD(int, fsync, (int file), (file), file)
FORWARD(int, fdatasync, (int file), (file), file)
FORWARD(int, ftruncate, (int file, off_t size), (file, size), file)
FORWARD(int, ftruncate64, (int file, off64_t size), (file, size), file)
FORWARD(int, close, (int file), (file), file)
FORWARD(int, rename, (const char* from, const char* to), (from, to), to)
FORWARD(int, link, (const char* from, const char* to), (from, to), to)
FORWARD(int, unlink, (const char* path), (path), path)
FORWARD(int, mkdir, (const char* path, mode_t mode), (path, mode), path)
extern "C" DIR* opendir(const char* path) {
  static auto real = next<DIR* (*)(const char*)>("opendir");
  return refuse("opendir", path) ? nullptr : real(path);
}
// NOLINTEND

void* operator new(size_t size) {
  if (out_of_memory && !inside) {
    out_of_memory = false;
    throw std::bad_alloc();
  }
  if (void* memory = std::malloc(size ? size : 1)) return memory;
  throw std::bad_alloc();
}
void* operator new[](size_t size) { return operator new(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
