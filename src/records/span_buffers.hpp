// SPDX-License-Identifier: Apache-2.0
// Collects the spans and exchanges of all threads of this process for a trace. A thread that ends a
// span writes it into its own buffer, without a lock. One other thread takes the spans from the
// buffers.
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
  int64_t id;  // the system's thread id
  std::string name;
};

// Starts or stops collecting spans. A start drops all spans that were not taken.
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
  std::vector<TracedSpan> spans;  // the outermost first; only those with a known begin
};
std::vector<OpenSpans> open_spans();

}  // namespace records
