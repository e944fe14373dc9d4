// SPDX-License-Identifier: Apache-2.0
// Emulates graphs. Work that enters a stream between begin and end of a capture is kept with its
// arguments, and runs at each launch. The emulator refuses in a capture everything that real CUDA
// refuses, with the same errors. It also refuses captures over several streams, and graphs in
// graphs, which it does not emulate. With CUDA_ON_CPU_COUNT=1 the program prints the number of
// launched graphs at its end.
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
  return report(error);
}
cudaError_t unsafe_call() {
  return capturing_here ? invalidate(capturing_here, cudaErrorStreamCaptureUnsupported) : broken();
}
cudaError_t default_stream_use() {
  return capturing_here && capturing_here->blocking
             ? invalidate(capturing_here, cudaErrorStreamCaptureImplicit)
             : cudaSuccess;
}

}  // namespace cuda_on_cpu

using namespace cuda_on_cpu;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (!stream || mode != cudaStreamCaptureModeThreadLocal)
    return report(cudaErrorStreamCaptureUnsupported);
  if (stream->capture || capturing_here) return report(cudaErrorIllegalState);
  stream->capture = std::make_unique<EmulatedGraph>();
  stream->invalidated = false;
  capturing_here = stream;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* out) {
  *out = nullptr;
  if (!stream || !stream->capture) return report(cudaErrorIllegalState);
  if (capturing_here != stream) return report(cudaErrorStreamCaptureWrongThread);
  capturing_here = nullptr;
  std::unique_ptr<EmulatedGraph> graph = std::move(stream->capture);
  if (stream->invalidated) return report(cudaErrorStreamCaptureInvalidated);
  *out = graph.release();
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  if (nodes) return report(cudaErrorNotSupported);
  *count = graph->nodes.size();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long) {
  *out = new EmulatedGraphExec{std::make_shared<EmulatedGraph>(*graph)};
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (stream && stream->capture) return invalidate(stream, cudaErrorNotSupported);
  ++launched;
  for (size_t i = 0; i < exec->graph->nodes.size(); ++i)
    submit(stream, [graph = exec->graph, i] { graph->nodes[i](); });
  return cudaSuccess;
}
