// SPDX-License-Identifier: Apache-2.0
// What the emulated streams and graphs share.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "cuda_runtime.h"

struct EmulatedGraph {
  std::vector<std::function<void()>> nodes;
};
struct EmulatedGraphExec {
  std::shared_ptr<const EmulatedGraph> graph;  // also of the launches under way
};
struct EmulatedEvent {
  std::shared_ptr<bool> reached = std::make_shared<bool>(true);  // of the last record
  std::shared_ptr<double> at_s = std::make_shared<double>(0);
  // the last record was into a capture
  bool captured = false;
};
struct EmulatedStream {
  std::deque<std::function<bool()>> work;  // each says whether it is done
  bool blocking = false;                   // made without cudaStreamNonBlocking
  std::unique_ptr<EmulatedGraph> capture;  // while it captures
  bool invalidated = false;                // the capture, by what no capture allows
};

namespace cuda_on_cpu {

// The stream into whose capture this thread puts work; null: none.
cudaStream_t capturing();
// What a call in a capture that allows none of it returns; the capture is over.
cudaError_t invalidate(cudaStream_t stream, cudaError_t error);
// What may not be called while this thread captures (in thread-local mode): allocations, which may
// wait.
cudaError_t unsafe_call();
// Use of the default stream while this thread captures one that is ordered with it.
cudaError_t default_stream_use();

}  // namespace cuda_on_cpu
