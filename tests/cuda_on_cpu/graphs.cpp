// SPDX-License-Identifier: Apache-2.0
// Graphs: what is put into a stream between begin and end of a capture is kept with the arguments
// it had, and run at each launch. What real CUDA refuses in a capture is refused here, with its
// errors. Not emulated, and refused too: captures over several streams, and graphs in graphs.
// CUDA_ON_CPU_COUNT=1: at its end the program says how many graphs were launched.
#include <cstdio>
#include <cstdlib>

#include "streams.hpp"

namespace cuda_on_cpu {
namespace {

thread_local cudaStream_t capturing_here = nullptr;
int launched = 0;

struct Teller {
  ~Teller() {
    if (std::getenv("CUDA_ON_CPU_COUNT"))
      std::printf("cuda_on_cpu: %d graphs launched\n", launched);
  }
} teller;

}  // namespace

cudaStream_t capturing() { return capturing_here; }
int graphs_launched() { return launched; }

cudaError_t invalidate(cudaStream_t stream, cudaError_t error) {
  stream->invalidated = true;
  return error;
}
cudaError_t unsafe_call() {
  return capturing_here ? invalidate(capturing_here, cudaErrorStreamCaptureUnsupported)
                        : cudaSuccess;
}
cudaError_t default_stream_use() {
  return capturing_here && capturing_here->blocking
             ? invalidate(capturing_here, cudaErrorStreamCaptureImplicit)
             : cudaSuccess;
}

}  // namespace cuda_on_cpu

using namespace cuda_on_cpu;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (!stream || mode != cudaStreamCaptureModeThreadLocal) return cudaErrorStreamCaptureUnsupported;
  if (stream->capture || capturing_here) return cudaErrorIllegalState;
  stream->capture = std::make_unique<EmulatedGraph>();
  stream->invalidated = false;
  return capturing_here = stream, cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* out) {
  *out = nullptr;
  if (!stream || !stream->capture) return cudaErrorIllegalState;
  if (capturing_here != stream) return cudaErrorStreamCaptureWrongThread;
  capturing_here = nullptr;
  std::unique_ptr<EmulatedGraph> graph = std::move(stream->capture);
  if (stream->invalidated) return cudaErrorStreamCaptureInvalidated;
  return *out = graph.release(), cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  if (nodes) return cudaErrorNotSupported;
  return *count = graph->nodes.size(), cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long) {
  *out = new EmulatedGraphExec{std::make_shared<EmulatedGraph>(*graph)};
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return delete graph, cudaSuccess; }

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (stream && stream->capture) return invalidate(stream, cudaErrorNotSupported);
  ++launched;
  for (size_t i = 0; i < exec->graph->nodes.size(); ++i)
    submit(stream, [graph = exec->graph, i] { graph->nodes[i](); });
  return cudaSuccess;
}
