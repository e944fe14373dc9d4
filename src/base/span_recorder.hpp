// SPDX-License-Identifier: Apache-2.0
// A sink that gets whole spans and exchanges when they end, for traces. It also gets those that
// began before it was set. It can be set and removed at any time. A thread may still call it for a
// moment after its removal, so it must stay alive.
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
  uint64_t call;  // number of the call, equal on all ranks
  int64_t begin_ns, ns;
};
struct SpanRecorder {
  void (*span)(const EndedSpan& span);
  void (*exchange)(const EndedExchange& exchange);
};
void set_span_recorder(const SpanRecorder* recorder);  // null: none

}  // namespace base
