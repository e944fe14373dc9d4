// Streams and events. What is put into a stream runs at once, unless something before it in the stream cannot run yet: an operation
// that needs other ranks (nccl.cpp), or the wait for an event of another stream. Then it runs when somebody asks for the stream or
// waits for it, as late as CUDA may be: a wait that was forgotten shows as old data. With CUDA_ON_CPU_LATE=1 nothing runs at once.
#include <sched.h>

#include <cstdlib>
#include <deque>
#include <memory>
#include <set>

#include "cuda_runtime.h"

struct EmulatedStream {
  std::deque<std::function<bool()>> work;  // each says whether it is done
};
struct EmulatedEvent {
  std::shared_ptr<bool> reached = std::make_shared<bool>(true);  // of the last record
  std::shared_ptr<double> at_s = std::make_shared<double>(0);
};

namespace cuda_on_cpu {
namespace {

std::set<cudaStream_t>& streams() {
  static auto* all = new std::set<cudaStream_t>;
  return *all;
}

bool advance() {
  bool moved = false;
  for (bool again = true; again;) {
    again = false;
    for (cudaStream_t stream : streams())
      while (!stream->work.empty() && stream->work.front()()) stream->work.pop_front(), again = moved = true;
  }
  return moved;
}

}  // namespace

namespace {
double spent_s = 0;
}
void spend(double seconds) { spent_s += seconds; }

bool busy(cudaStream_t stream) { return stream && !stream->work.empty(); }

void submit(cudaStream_t stream, std::function<void()> work) {
  static const bool late = std::getenv("CUDA_ON_CPU_LATE") != nullptr;
  if (!stream || (!late && !busy(stream))) return work();
  stream->work.push_back([work = std::move(work)] { return work(), true; });
}

void submit_waiting(cudaStream_t stream, std::function<bool()> work) { stream->work.push_back(std::move(work)); }

void wait(cudaStream_t stream) {
  while (busy(stream))
    if (!advance()) sched_yield();
}

void wait_for_all() {
  for (cudaStream_t stream : streams()) wait(stream);
}

}  // namespace cuda_on_cpu

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned) {
  *out = new EmulatedStream;
  cuda_on_cpu::streams().insert(*out);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  cuda_on_cpu::streams().erase(stream);
  return delete stream, cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return cuda_on_cpu::wait(stream), cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (cuda_on_cpu::busy(stream)) cuda_on_cpu::advance();
  return cuda_on_cpu::busy(stream) ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (!*event->reached) cuda_on_cpu::submit_waiting(stream, [reached = event->reached] { return *reached; });
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned) { return *out = new EmulatedEvent, cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->reached = std::make_shared<bool>(false);
  cuda_on_cpu::submit(stream, [reached = event->reached, at_s = event->at_s] { *reached = true, *at_s = cuda_on_cpu::spent_s; });
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  return *ms = float(1e3 * (*end->at_s - *begin->at_s)), *begin->reached && *end->reached ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (!*event->reached) cuda_on_cpu::advance();
  return *event->reached ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  while (cudaEventQuery(event) != cudaSuccess) sched_yield();
  return cudaSuccess;
}
