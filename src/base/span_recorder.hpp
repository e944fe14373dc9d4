// SPDX-License-Identifier: Apache-2.0
// A sink of spans and exchanges as wholes, for traces. It hears of them when they end, also of
// those that were begun before it was set. It can be set and taken away at any time. A thread may
// call it for a moment after that, so it must live on.
#pragma once

#include <cstdint>

#include "base/span.hpp"

namespace base {

struct EndedSpan {
  const SpanName& name;
  int64_t number, begin_ns, ns, flops, bytes;
  SpanKind kind;
};
struct EndedExchange {
  ExchangeSpan::Call what;
  uint64_t call;  // number of the call; ranks count alike
  int64_t begin_ns, ns;
};
struct SpanRecorder {
  void (*span)(const EndedSpan& span);
  void (*exchange)(const EndedExchange& exchange);
};
void set_span_recorder(const SpanRecorder* recorder);  // null: none hears

}  // namespace base
