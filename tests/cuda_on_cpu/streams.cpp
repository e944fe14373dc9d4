// SPDX-License-Identifier: Apache-2.0
// Emulates streams and events. Work in a stream runs at once, unless earlier work in the stream
// cannot run yet: an operation that needs other ranks (nccl.cpp), or a wait for another stream's
// event. Such work runs when the program queries the stream or waits for it, which is as late as
// CUDA may run it. So a forgotten wait results in old data. With CUDA_ON_CPU_LATE=1 no work runs at
// once. With CUDA_ON_CPU_NO_EVENT=1 no stream waits for an event. This shows whether the search for
// hazards notices that.
#include "streams.hpp"

#include <sched.h>

#include <cstdlib>
#include <optional>

namespace cuda_on_cpu {
namespace {

std::set<cudaStream_t>& streams() {
  static auto* all = new std::set<cudaStream_t>;
  return *all;
}

bool advance() {
  // Opening and closing the memory costs more than small kernels, so it stays open from the first
  // work to the last.
  std::optional<Access> open;
  bool moved = false;
  for (bool again = true; again;) {
    again = false;
    for (cudaStream_t stream : streams())
      while (!stream->work.empty() && stream->work.front()()) {
        stream->work.pop_front();
        again = moved = true;
        if (!open) open.emplace();
      }
  }
  return moved;
}

}  // namespace

namespace {
double spent_s = 0;

Clock& clock_of(cudaStream_t stream) {
  static Clock of_default;
  return stream ? stream->clock : of_default;
}
std::function<bool()> watched(cudaStream_t stream, std::function<bool()> work) {
  if (!watches()) return work;
  return [as = add_work(stream ? stream->number : 0, clock_of(stream)), work = std::move(work)] {
    return run_watched(as, work);
  };
}
// The host has waited for the stream.
void host_waited(cudaStream_t stream) { host_clock().join(clock_of(stream)); }
}  // namespace
void spend(double seconds) { spent_s += seconds; }

bool busy(cudaStream_t stream) { return stream && !stream->work.empty(); }

cudaError_t submit(cudaStream_t stream, std::function<void()> work) {
  static const bool late = std::getenv("CUDA_ON_CPU_LATE") != nullptr;
  if (broken() != cudaSuccess) return broken();
  if (stream && stream->capture) {
    if (stream->invalidated) return report(cudaErrorStreamCaptureInvalidated);
    stream->capture->nodes.push_back(std::move(work));
    return cudaSuccess;
  }
  if (!stream)
    if (cudaError_t refused = default_stream_use(); refused != cudaSuccess) return refused;
  std::function<bool()> whole = watched(stream, [work = std::move(work)] {
    work();
    return true;
  });
  if (!stream || (!late && !busy(stream)))
    whole();
  else
    stream->work.push_back(std::move(whole));
  return cudaSuccess;
}

void submit_waiting(cudaStream_t stream, std::function<bool()> work) {
  // real CUDA can capture such work
  if (stream->capture) invalidate(stream, cudaErrorNotSupported);
  stream->work.push_back(watched(stream, std::move(work)));
}

void wait(cudaStream_t stream) {
  while (busy(stream))
    if (!advance()) sched_yield();
  host_waited(stream);
}

void wait_for_all() {
  host_waited(nullptr);
  for (cudaStream_t stream : streams()) wait(stream);
}

}  // namespace cuda_on_cpu

using cuda_on_cpu::invalidate;
using cuda_on_cpu::report;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned flags) {
  *out = new EmulatedStream;
  (*out)->blocking = flags != cudaStreamNonBlocking;
  cuda_on_cpu::streams().insert(*out);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  cuda_on_cpu::streams().erase(stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream && stream->capture) return invalidate(stream, cudaErrorStreamCaptureUnsupported);
  if (!stream)
    if (cudaError_t refused = cuda_on_cpu::default_stream_use(); refused != cudaSuccess)
      return refused;
  cuda_on_cpu::wait(stream);
  return cuda_on_cpu::broken();
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (stream->capture) return invalidate(stream, cudaErrorStreamCaptureUnsupported);
  if (cuda_on_cpu::busy(stream)) cuda_on_cpu::advance();
  if (cuda_on_cpu::busy(stream)) return report(cudaErrorNotReady);
  cuda_on_cpu::host_waited(stream);
  return cuda_on_cpu::broken();
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  static const bool left_out = std::getenv("CUDA_ON_CPU_NO_EVENT") != nullptr;
  if (left_out) return cudaSuccess;
  if (stream->capture)
    return event->captured ? cudaSuccess : invalidate(stream, cudaErrorStreamCaptureIsolation);
  // real CUDA takes the stream into the capture
  if (event->captured) return report(cudaErrorNotSupported);
  stream->clock.join(event->clock);
  if (!*event->reached)
    cuda_on_cpu::submit_waiting(stream, [reached = event->reached] { return *reached; });
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned) {
  *out = new EmulatedEvent;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->captured = stream && stream->capture;
  if (event->captured)
    return stream->invalidated ? report(cudaErrorStreamCaptureInvalidated) : cudaSuccess;
  event->reached = std::make_shared<bool>(false);
  event->clock = cuda_on_cpu::clock_of(stream);
  return cuda_on_cpu::submit(stream, [reached = event->reached, at_s = event->at_s] {
    *reached = true;
    *at_s = cuda_on_cpu::spent_s;
  });
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  *ms = float(1e3 * (*end->at_s - *begin->at_s));
  return *begin->reached && *end->reached ? cudaSuccess : report(cudaErrorNotReady);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event->captured) {
    if (cuda_on_cpu::capturing()) invalidate(cuda_on_cpu::capturing(), cudaErrorCapturedEvent);
    return report(cudaErrorCapturedEvent);
  }
  if (!*event->reached) cuda_on_cpu::advance();
  if (!*event->reached) return report(cudaErrorNotReady);
  cuda_on_cpu::host_clock().join(event->clock);
  return cuda_on_cpu::broken();
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event->captured) return cudaEventQuery(event);
  while (!*event->reached)
    if (!cuda_on_cpu::advance()) sched_yield();
  cuda_on_cpu::host_clock().join(event->clock);
  return cuda_on_cpu::broken();
}
