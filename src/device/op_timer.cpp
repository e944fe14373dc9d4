// SPDX-License-Identifier: Apache-2.0
#include "device/op_timer.hpp"

#include <cmath>

#include "base/clock.hpp"
#include "device/gpu.hpp"
#include "device/op_lapses.hpp"

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

void OpTimer::collect(Queue& queue, const Each& each) {
  queue.synchronize("the times of ops");
  for (size_t i = 0; i < used_; ++i) {
    if (each) each(spans_[i].work, spans_[i].begin, spans_[i].end);
    Time& time = times_.ops[spans_[i].work];
    ++time.calls;
    time.seconds += gpu::seconds_between(spans_[i].begin, spans_[i].end);
  }
  if (used_) times_.span_s += gpu::seconds_between(spans_[0].begin, spans_[used_ - 1].end);
  used_ = 0;
}

OpLapses::OpLapses(Queue& queue) : queue_(queue), begin_(gpu::make_timing_event()) {
  queue.synchronize("the begin of a trace");
  const int64_t before_ns = base::now_ns();
  gpu::record(begin_, queue.stream());
  gpu::wait_for_event(begin_);
  begin_ns_ = before_ns + (base::now_ns() - before_ns) / 2;
  queue.set_timer(&timer_);
}

OpLapses::~OpLapses() {
  queue_.set_timer(nullptr);
  gpu::free_event(begin_);
}

std::vector<OpLapse> OpLapses::take() {
  std::vector<OpLapse> out;
  // CUDA gives the time between two events as a float of milliseconds, which is less exact the
  // longer it is. So each event is measured from the event before it.
  void* event = begin_;
  int64_t at_ns = begin_ns_;
  auto move_to = [&](void* next) {
    at_ns += std::llround(1e9 * gpu::seconds_between(event, next));
    event = next;
    return at_ns;
  };
  timer_.collect(queue_, [&](const OpTimer::Work& work, void* op_begin, void* op_end) {
    const int64_t begin_ns = move_to(op_begin);
    out.push_back({work, begin_ns, move_to(op_end)});
  });
  return out;
}

}  // namespace device
