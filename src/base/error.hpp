// SPDX-License-Identifier: Apache-2.0
// Errors of the whole program and their exit codes.
//
// The folder base holds errors, log, random numbers, hashes, clocks and text. Every folder may use
// it, and it uses no other folder. Add only code that at least two folders need and that knows
// neither tensors nor ranks' data.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace base {

// Process exit codes. They are in 1..125, because mpirun reduces them modulo 256.
enum class Exit : int {
  finished = 0,  // finished now or before, or early stop
  internal = 1,  // a bug: failed check, unexpected exception
  config = 2,    // the deck or the command line
  mesh = 3,      // ranks, mesh or device do not fit; out of memory
  data = 4,      // data set, sample, tokenizer
  // no readable or valid checkpoint, or a file of the run cannot be read or written
  checkpoint = 5,
  nonfinite = 6,  // loss or gradient is NaN or infinite
  watchdog = 7,   // no progress
  stopped = 8,    // stopped with a checkpoint, do not requeue
  requeue = 75,   // stopped early with a checkpoint, requeue
};

class Error : public std::runtime_error {
 public:
  // `agreed`: every rank throws the error at the same place, so only the rank `teller` reports it.
  Error(Exit code, const std::string& text, bool agreed = false, int teller = 0)
      : std::runtime_error(text), code_(code), agreed_(agreed), teller_(teller) {}
  Exit code() const { return code_; }
  bool agreed() const { return agreed_; }
  int teller() const { return teller_; }

 private:
  Exit code_;
  bool agreed_;
  int teller_;
};

// Throws Error(code, formatted text).
template <class... Args>
[[noreturn]] void fail(Exit code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

[[noreturn]] void fail_check(const char* condition, const char* file, int line,
                             const std::string& text);

// The position of the program, for error reports. The rank is set once, the step by the loop.
struct Where {
  int rank = 0;
  int ranks = 1;
  int64_t step = 0;
  const char* phase = "start";  // a string literal
};
Where where();
void set_rank(int rank, int ranks);
void set_step(int64_t step);
void set_phase(const char* phase);

}  // namespace base

// Checks an invariant. Throws Error(Exit::internal) with condition, message and file:line.
#define CHECK(condition, ...)                                                                   \
  do {                                                                                          \
    if (!(condition)) [[unlikely]]                                                              \
      ::base::fail_check(#condition, __FILE__, __LINE__, ::base::detail::message(__VA_ARGS__)); \
  } while (0)

namespace base::detail {
inline std::string message() { return {}; }
template <class... Args>
std::string message(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}
}  // namespace base::detail
