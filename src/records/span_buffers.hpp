// SPDX-License-Identifier: Apache-2.0
// Collects the spans and exchanges of all threads of this process for a trace. A thread that ends a
// span writes it into memory of its own, without a lock; one other thread takes the spans from
// there.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/span.hpp"

namespace records {

struct TracedSpan {
  base::SpanName name;
  int64_t number, begin_ns, ns, flops, bytes;
  base::SpanKind kind;
};
struct TracedExchange {
  std::string kind, group;
  int type;
  int64_t count, begin_ns, ns;
  uint64_t call;
};
struct TracedThread {
  int64_t id;  // of the system
  std::string name;
};

// Spans are collected from now on, or no longer. Spans that nobody has taken are forgotten when
// collecting begins.
void collect_spans(bool on);
// Calls `take` for each thread, with its spans since the last call in the order of their ends. Only
// one thread calls.
using TakeSpans = std::function<void(const TracedThread& thread, std::span<const TracedSpan>)>;
void take_spans(const TakeSpans& take);
// Returns the exchanges that ended since the last call.
std::vector<TracedExchange> take_exchanges();
// Returns the number of spans, since collecting began, for which there was no memory. A thread may
// keep a million that nobody takes.
int64_t spans_lost();

// Returns the threads of this process that have a place in the flight page, with the spans that
// they have begun and not ended.
struct OpenSpans {
  TracedThread thread;
  std::vector<TracedSpan> spans;  // the outermost first; none without a time of its begin
};
std::vector<OpenSpans> open_spans();

}  // namespace records
