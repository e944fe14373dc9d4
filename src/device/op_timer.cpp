// SPDX-License-Identifier: Apache-2.0
#include "device/op_timer.hpp"

#include "device/gpu.hpp"

namespace device {

OpTimer::~OpTimer() {
  for (const Span& span : spans_) {
    gpu::free_event(span.begin);
    gpu::free_event(span.end);
  }
}

void OpTimer::begin(const Queue& queue) {
  if (used_ == spans_.size())
    spans_.push_back({gpu::make_timing_event(), gpu::make_timing_event(), {}});
  gpu::record(spans_[used_].begin, queue.stream());
}

void OpTimer::end(const Work& work, const Queue& queue) {
  gpu::record(spans_[used_].end, queue.stream());
  spans_[used_++].work = work;
}

void OpTimer::collect(Queue& queue) {
  queue.synchronize("the times of ops");
  for (size_t i = 0; i < used_; ++i) {
    Time& time = times_.ops[spans_[i].work];
    ++time.calls;
    time.seconds += gpu::seconds_between(spans_[i].begin, spans_[i].end);
  }
  if (used_) times_.span_s += gpu::seconds_between(spans_[0].begin, spans_[used_ - 1].end);
  used_ = 0;
}

}  // namespace device
