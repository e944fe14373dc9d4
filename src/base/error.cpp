// SPDX-License-Identifier: Apache-2.0
#include "base/error.hpp"

#include <atomic>
#include <optional>

#include "base/flight_page.hpp"
#include "base/span.hpp"

namespace base {
namespace {
// These are global for the process, so that an error report on any thread can name rank, step and
// phase.
std::atomic<int> g_rank{0}, g_ranks{1};
std::atomic<int64_t> g_step{0};
std::atomic<const char*> g_phase{"start"};

// The span of the phase, which encloses all other spans of the main thread. It is never destroyed,
// because the last phase lasts until the process ends.
std::optional<Span>& phase_span() {
  static auto& made = *new std::optional<Span>;
  return made;
}
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
  flight_page().head.rank = uint64_t(rank);
  flight_page().head.ranks = uint64_t(ranks);
}
void set_step(int64_t step) {
  g_step = step;
  flight_page().head.step = uint64_t(step);
}
void set_phase(const char* phase) {
  g_phase = phase;
  const SpanName name = SpanName::of(phase);
  phase_span().reset();
  phase_span().emplace(name, SpanKind::phase);
  for (size_t i = 0; i < name.words().size(); ++i) flight_page().head.phase[i] = name.words()[i];
}

}  // namespace base
