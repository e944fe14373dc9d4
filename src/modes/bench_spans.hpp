// SPDX-License-Identifier: Apache-2.0
// The cost of spans (base/span.hpp) in a step.
#pragma once

#include <cstdint>
#include <string>

namespace modes {

// Numbers of spans and exchanges that this process has begun.
struct SpanMark {
  uint64_t spans = 0, exchanges = 0;
  SpanMark since(const SpanMark& before) const {
    return {spans - before.spans, exchanges - before.exchanges};
  }
};
SpanMark mark_spans();

struct SpanCost {
  // Time of a span: without a sink, kept in the flight page, also traced. Time of an exchange.
  double idle_ns = 0, kept_ns = 0, traced_ns = 0, exchange_ns = 0;
  SpanMark begun;  // in all steps
  // Returns the share of a step of this length that `steps` steps with these spans need.
  double share(double step_ms, int64_t steps) const { return share_of(kept_ns, step_ms, steps); }
  double traced_share(double step_ms, int64_t steps) const {
    return share_of(traced_ns, step_ms, steps);
  }
  std::string text(double step_ms, int64_t steps) const;

 private:
  double share_of(double span_ns, double step_ms, int64_t steps) const;
};

// Measures the cost of one span in each state, and of one exchange. `begun`: SpanCost::begun. Takes
// some milliseconds.
SpanCost measure_spans(const SpanMark& begun);

}  // namespace modes
