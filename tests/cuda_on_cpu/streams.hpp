// SPDX-License-Identifier: Apache-2.0
// Types that the emulated streams and graphs share.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "cuda_runtime.h"
#include "watch.hpp"

struct EmulatedGraph {
  std::vector<std::function<void()>> nodes;
};
struct EmulatedGraphExec {
  std::shared_ptr<const EmulatedGraph> graph;  // shared with pending launches
};
struct EmulatedEvent {
  std::shared_ptr<bool> reached = std::make_shared<bool>(true);  // by the last record
  std::shared_ptr<double> at_s = std::make_shared<double>(0);
  // true if the last record was in a capture
  bool captured = false;
  cuda_on_cpu::Clock clock;  // of the last record
};
struct EmulatedStream {
  std::deque<std::function<bool()>> work;  // each returns true when it is done
  bool blocking = false;                   // made without cudaStreamNonBlocking
  std::unique_ptr<EmulatedGraph> capture;  // set while the stream captures
  bool invalidated = false;                // a forbidden call has ended the capture
  const size_t number = cuda_on_cpu::take_stream_number();
  cuda_on_cpu::Clock clock;
  ~EmulatedStream() { cuda_on_cpu::return_stream_number(number); }
};

namespace cuda_on_cpu {

// Returns the stream that this thread captures, or null.
cudaStream_t capturing();
// Ends the capture and returns the error of a call that no capture allows.
cudaError_t invalidate(cudaStream_t stream, cudaError_t error);
// Returns the error of a call that may wait, for example an allocation, if this thread captures in
// thread-local mode.
cudaError_t unsafe_call();
// Returns the error of a use of the default stream while this thread captures a stream that is
// ordered with it.
cudaError_t default_stream_use();

}  // namespace cuda_on_cpu
