// SPDX-License-Identifier: Apache-2.0
#include "base/error.hpp"

#include <atomic>

namespace base {
namespace {
// These are global for the process, so that an error report on any thread can name rank, step and
// phase.
std::atomic<int> g_rank{0}, g_ranks{1};
std::atomic<int64_t> g_step{0};
std::atomic<const char*> g_phase{"start"};
}  // namespace

void fail_check(const char* condition, const char* file, int line, const std::string& text) {
  const char* name = std::strrchr(file, '/');
  Where w = where();
  throw Error(Exit::internal, fmt::format("internal check failed: {}{}{} ({}:{}, rank {}, step {})",
                                          condition, text.empty() ? "" : ": ", text,
                                          name ? name + 1 : file, line, w.rank, w.step));
}

Where where() { return {g_rank, g_ranks, g_step, g_phase}; }
void set_rank(int rank, int ranks) {
  g_rank = rank;
  g_ranks = ranks;
}
void set_step(int64_t step) { g_step = step; }
void set_phase(const char* phase) { g_phase = phase; }

}  // namespace base
