// SPDX-License-Identifier: Apache-2.0
// The ops of a GPU one by one, on the host's clock, for traces. OpTimer adds them up instead.
#pragma once

#include <cstdint>
#include <vector>

#include "device/op_timer.hpp"

namespace device {

// The op number of work that is the launch of a graph.
constexpr int kGraphLaunch = -1;

struct OpLapse {
  OpTimer::Work work;
  int64_t begin_ns, end_ns;  // on base::now_ns()
};

// Measures the ops of a queue while it exists.
class OpLapses {
 public:
  explicit OpLapses(Queue& queue);  // waits for the queue
  ~OpLapses();
  OpLapses(const OpLapses&) = delete;
  // Waits for the queue, and returns its ops since the last call.
  std::vector<OpLapse> take();

 private:
  Queue& queue_;
  OpTimer timer_;
  void* begin_;  // an event, and the host's time at it
  int64_t begin_ns_;
};

}  // namespace device
