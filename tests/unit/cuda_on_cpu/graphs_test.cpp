// SPDX-License-Identifier: Apache-2.0
// Tests graphs. They repeat work as it was recorded, on the present contents of memory. Work that
// cannot be recorded is reported. In a capture the emulated run time refuses everything that a real
// one refuses.
#include "device/graphs.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "device/cuda.hpp"
#include "device/memory.hpp"
#include "kernels/elementwise.hpp"

namespace {

using device::DType;
using device::Graphs;
using device::Kind;
using device::View;

class GraphsTest : public testing::Test {
 protected:
  GraphsTest() : queue_(Kind::cuda), buffer_(Kind::cuda, ledger_, "test", 1024) {}
  View floats(int64_t begin, int64_t count) const {
    return buffer_.view(DType::f32).slice(begin, count);
  }
  void write(int64_t at, float value) { device::upload(floats(at, 1), &value, queue_); }
  float read(int64_t at) {
    float out = 0;
    device::download(&out, floats(at, 1), queue_);
    return out;
  }
  // Computes y = x + x' from numbers 0 and 1 into number 2.
  void add() {
    kernels::run(kernels::Add{.y = floats(2, 1), .a = floats(0, 1), .b = floats(1, 1)}, queue_);
  }
  std::string error_of(const std::function<void()>& call, base::Exit exit) {
    try {
      call();
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), exit);
      return e.what();
    }
    return "";
  }

  device::Queue queue_;
  device::Ledger ledger_;
  device::Buffer buffer_;
};

TEST_F(GraphsTest, RepeatWorkWithWhatMemoryHoldsByThen) {
  Graphs graphs(queue_, 4, "passes");
  const int launched = cuda_on_cpu::graphs_launched();
  int called = 0;
  for (int i = 1; i <= 5; ++i) {
    write(0, float(i));
    write(1, 10 * float(i));
    graphs.run({7}, [&] {
      ++called;
      add();
      add();
    });
    EXPECT_EQ(read(2), 11 * float(i));
  }
  EXPECT_EQ(called, 2) << "one call runs the work, the next records it";
  EXPECT_EQ(cuda_on_cpu::graphs_launched() - launched, 4);
  const Graphs::Counts& c = graphs.counts();
  EXPECT_EQ(c.runs, 5);
  EXPECT_EQ(c.launches, 4);
  EXPECT_EQ(c.graphs, 1);
  EXPECT_EQ(c.nodes, 2);
  const device::OpCost& cost = queue_.costs()[size_t(kernels::Op::add)];
  EXPECT_EQ(cost.calls, 10);
  EXPECT_EQ(cost.bytes, 10 * 12);
}

// A change that is not in the key has no effect, because the graph keeps the recorded arguments. A
// forgotten argument then changes results.
TEST_F(GraphsTest, RepeatArgumentsAsTheyWere) {
  Graphs graphs(queue_, 4, "passes");
  auto fill = [&](int64_t key, float value) {
    graphs.run({key},
               [&] { kernels::run(kernels::Fill{.y = floats(0, 1), .value = value}, queue_); });
    return read(0);
  };
  EXPECT_EQ(fill(1, 1), 1);
  EXPECT_EQ(fill(1, 2), 2);
  EXPECT_EQ(fill(1, 3), 2);
  EXPECT_EQ(fill(2, 4), 4);
  EXPECT_EQ(fill(2, 5), 5);
  EXPECT_EQ(fill(1, 6), 2) << "both are kept";
}

TEST_F(GraphsTest, AreNoMoreThanAllowed) {
  Graphs graphs(queue_, 1, "passes");
  int called = 0;
  for (int i = 1; i <= 4; ++i)
    for (int64_t key : {1, 2})
      graphs.run({key}, [&] {
        ++called;
        add();
      });
  EXPECT_EQ(called, 2 + 4);
  EXPECT_EQ(graphs.counts().graphs, 1);
  EXPECT_EQ(graphs.counts().launches, 3);
}

// Scratch that has grown has a new address, while graphs hold the old one.
TEST_F(GraphsTest, AreRecordedAnewWhenScratchMoves) {
  Graphs graphs(queue_, 1, "passes");
  int called = 0;
  size_t bytes = 4096;
  auto run = [&] {
    graphs.run({1}, [&] {
      ++called;
      kernels::run(kernels::Copy{.y = floats(0, 1),
                                 .x = device::view(static_cast<float*>(queue_.scratch(4)), 1)},
                   queue_);
    });
  };
  run();
  run();
  run();
  EXPECT_EQ(called, 2);
  queue_.scratch(bytes *= 64);
  const float mark = 5;
  device::upload(device::view(static_cast<float*>(queue_.scratch(4)), 1), &mark, queue_);
  run();
  EXPECT_EQ(called, 3);
  EXPECT_EQ(graphs.counts().graphs, 1);
  EXPECT_EQ(read(0), 5);
  run();
  EXPECT_EQ(called, 3);
}

TEST_F(GraphsTest, SayWhatCannotBeRecorded) {
  Graphs graphs(queue_, 4, "passes");
  float value = 3;
  int64_t key = 0;
  // The first run of each key records nothing and succeeds.
  auto error = [&](const std::function<void()>& work, base::Exit exit = base::Exit::internal) {
    ++key;
    graphs.run({key}, work);
    return error_of([&] { graphs.run({key}, work); }, exit);
  };
  std::string text = error([&] {
    add();
    queue_.synchronize("the weather");
  });
  EXPECT_NE(text.find("recording a CUDA graph of passes failed at or after op add: "),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("the host waits while a graph is recorded: the weather"), std::string::npos)
      << text;
  EXPECT_NE(text.find("run.cuda_graph = \"off\" runs without graphs"), std::string::npos) << text;
  EXPECT_NE(error([&] { device::upload(floats(0, 1), &value, queue_); }).find("an upload while"),
            std::string::npos);
  device::HostBuffer pinned(Kind::cuda, 4);
  EXPECT_NE(error([&] {
              device::upload_pinned(floats(0, 1), pinned.data(), queue_);
            }).find("an upload while"),
            std::string::npos);
  device::Event event;
  EXPECT_NE(error([&] { event.record(queue_); }).find("an event while"), std::string::npos);
  EXPECT_NE(error([&] { event.wait(queue_); }).find("an event while"), std::string::npos);
  // CUDA itself refuses the work that our own checks miss.
  text = error([&] { device::Buffer(Kind::cuda, ledger_, "test", 64); }, base::Exit::mesh);
  EXPECT_NE(text.find("recording a CUDA graph of passes"), std::string::npos) << text;
  // The queue still works after the errors.
  write(0, 1);
  write(1, 2);
  add();
  EXPECT_EQ(read(2), 3);
  graphs.run({100}, [&] { add(); });
  graphs.run({100}, [&] { add(); });
  EXPECT_EQ(graphs.counts().graphs, 1);
}

class Capture : public GraphsTest {
 protected:
  ~Capture() override { cudaGetLastError(); }  // clears what refused calls leave
  cudaStream_t stream() { return device::stream_of(queue_); }
  void begin() {
    ASSERT_EQ(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
  }
  // Checks that the capture was invalidated before its end.
  void expect_invalidated() {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream(), &graph), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph, nullptr);
  }
};

TEST_F(Capture, RunsNothingBeforeItIsLaunched) {
  write(0, 1);
  write(1, 2);
  write(2, 0);
  begin();
  add();
  EXPECT_EQ(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal),
            cudaErrorIllegalState);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream(), &graph), cudaSuccess);
  EXPECT_EQ(cudaStreamEndCapture(stream(), &graph), cudaErrorIllegalState);
  graph = nullptr;
  EXPECT_EQ(read(2), 0);
  begin();
  add();
  ASSERT_EQ(cudaStreamEndCapture(stream(), &graph), cudaSuccess);
  cudaGraphExec_t ready = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&ready, graph, 0), cudaSuccess);
  cudaGraphDestroy(graph);
  EXPECT_EQ(read(2), 0);
  // A launch behind pending work waits, and the graph may be freed while it waits.
  bool released = false;
  cuda_on_cpu::submit_waiting(stream(), [&] { return released; });
  ASSERT_EQ(cudaGraphLaunch(ready, stream()), cudaSuccess);
  cudaGraphExecDestroy(ready);
  released = true;
  EXPECT_EQ(read(2), 3);
}

TEST_F(Capture, RefusesWhatCudaRefuses) {
  cudaStream_t other = nullptr;
  cudaEvent_t outside = nullptr, inside = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&outside, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&inside, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(outside, other), cudaSuccess);
  auto refused = [&](cudaError_t expected, const std::function<cudaError_t()>& call) {
    begin();
    ASSERT_EQ(cudaEventRecord(inside, stream()), cudaSuccess);
    EXPECT_EQ(call(), expected);
    expect_invalidated();
  };
  float pageable = 0;
  void* memory = nullptr;
  refused(cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamSynchronize(stream()); });
  refused(cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamQuery(stream()); });
  refused(cudaErrorStreamCaptureUnsupported, [&] {
    return cudaMemcpyAsync(buffer_.data(), &pageable, 4, cudaMemcpyDefault, stream());
  });
  refused(cudaErrorStreamCaptureUnsupported, [&] { return cudaMalloc(&memory, 4); });
  refused(cudaErrorStreamCaptureUnsupported, [&] { return cudaMallocHost(&memory, 4); });
  refused(cudaErrorCapturedEvent, [&] { return cudaEventQuery(inside); });
  refused(cudaErrorCapturedEvent, [&] { return cudaEventSynchronize(inside); });
  refused(cudaErrorStreamCaptureIsolation,
          [&] { return cudaStreamWaitEvent(stream(), outside, 0); });
  // After the invalidation all later calls fail, too.
  refused(cudaErrorStreamCaptureInvalidated, [&] {
    cudaStreamQuery(stream());
    return cudaMemsetAsync(buffer_.data(), 0, 4, stream());
  });
  // The default stream is ordered only with blocking streams.
  begin();
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(outside), cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream(), &graph), cudaSuccess);
  cudaGraphDestroy(graph);
  cudaStream_t ordered = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&ordered, 0), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(ordered, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaErrorStreamCaptureImplicit);
  EXPECT_EQ(cudaStreamEndCapture(ordered, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeThreadLocal),
            cudaErrorStreamCaptureUnsupported);
  for (cudaEvent_t event : {outside, inside}) cudaEventDestroy(event);
  for (cudaStream_t one : {other, ordered}) cudaStreamDestroy(one);
}

}  // namespace
