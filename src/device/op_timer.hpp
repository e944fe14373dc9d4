// SPDX-License-Identifier: Apache-2.0
// Measures how long a GPU takes for each op of a queue: an event before and one after every op.
// Ops in CUDA graphs have no events of their own, so their queue must run without graphs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "device/queue.hpp"

namespace device {

class OpTimer {
 public:
  using Work = PlannedCall;
  struct Time {
    int64_t calls = 0;
    double seconds = 0;
  };
  struct Times {
    std::map<Work, Time> ops;
    double span_s = 0;  // from the first op to the last one of each collection
  };

  OpTimer() = default;
  ~OpTimer();
  OpTimer(const OpTimer&) = delete;

  void begin(const Queue& queue);
  void end(const Work& work, const Queue& queue);
  // Waits for the queue, and adds the times of its ops since the last call. `each` gets every op in
  // the queue's order, with the events before and after it.
  using Each = std::function<void(const Work& work, void* begin, void* end)>;
  void collect(Queue& queue, const Each& each = {});
  const Times& times() const { return times_; }

 private:
  struct Span {
    void *begin, *end;
    Work work;
  };
  std::vector<Span> spans_;  // keep their events for later ops
  size_t used_ = 0;
  Times times_;
};

}  // namespace device
