// SPDX-License-Identifier: Apache-2.0
// Tests that the emulated GPU reveals the mistakes that it is made for.
#include <gtest/gtest.h>
#include <nvtx3/nvToolsExt.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/span.hpp"
#include "device/gpu.hpp"
#include "emulated_gpu.hpp"
#include "kernels/cuda/block.cuh"
#include "kernels/elementwise.hpp"

namespace {

using namespace kernels;

// Sums a block: correctly, without a barrier, and with a barrier that only some threads reach.
enum class Form { right, no_barrier, some_wait };
template <Form form>
__global__ void turn_around(float* x) {
  __shared__ float all[64];
  all[threadIdx.x] = x[threadIdx.x];
  if (form == Form::right || (form == Form::some_wait && threadIdx.x < 40)) __syncthreads();
  x[threadIdx.x] = all[63 - threadIdx.x];
}
// Thread 1 reads what two other threads write. In either order, one of them runs before thread 1.
__global__ void hears_a_neighbour(float* x) {
  __shared__ float said;
  if (threadIdx.x == 0 || threadIdx.x == 2) said = 5;
  if (threadIdx.x == 1) x[1] = said;
}
__global__ void sums(float* x) {
  __shared__ BlockShared<float> shared;
  x[threadIdx.x] = block_sum(x[threadIdx.x], shared) + 1000 * block_max(x[threadIdx.x], shared);
}
__global__ void past_the_end(float* x) { x[threadIdx.x + 64] = 1; }

TEST_F(EmulatedGpu, RunsThreadsOfABlockTogether) {
  for (const char* order : {"forward", "reverse"}) {
    std::vector<float> x = run(turn_around<Form::right>, order), y = run(sums, order);
    for (size_t i = 0; i < 64; ++i) {
      EXPECT_EQ(x[i], float(63 - i));
      EXPECT_EQ(y[i], 63 * 64 / 2 + 1000 * 63);
    }
  }
}

TEST_F(EmulatedGpu, AMissingBarrierShowsInTheOrder) {
  EXPECT_NE(run(turn_around<Form::no_barrier>, "forward"),
            run(turn_around<Form::no_barrier>, "reverse"));
}

TEST_F(EmulatedGpu, ARaceThatBothOrdersHideShowsInRandomOnes) {
  EXPECT_EQ(run(hears_a_neighbour, "forward")[1], 5);
  EXPECT_EQ(run(hears_a_neighbour, "reverse")[1], 5);
  int found = 0;
  for (int seed = 1; seed <= 20; ++seed) {
    const Set set("CUDA_ON_CPU_SEED", std::to_string(seed).c_str());
    found += std::isnan(run(hears_a_neighbour, "random")[1]);
    EXPECT_EQ(run(turn_around<Form::right>, "random"), run(turn_around<Form::right>, "forward"));
  }
  EXPECT_GT(found, 0);
  EXPECT_LT(found, 20);
}

TEST_F(EmulatedGpu, ABarrierThatSomeMissIsAnError) {
  try {
    run(turn_around<Form::some_wait>, "forward");
    FAIL();
  } catch (const std::runtime_error& e) {
    EXPECT_NE(std::string(e.what()).find("threads part at a barrier"), std::string::npos)
        << e.what();
  }
  EXPECT_EQ(run(turn_around<Form::right>, "forward")[0], 63)
      << "the next launch must work like the first";
}

using EmulatedGpuDeathTest = EmulatedGpu;
TEST_F(EmulatedGpuDeathTest, MemoryIsGuarded) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(*static_cast<volatile float*>(buffer_.data()) = 1,
               "host code touched device memory");
  EXPECT_DEATH(run(past_the_end, "forward"), "a kernel touched memory outside");
}

TEST_F(EmulatedGpu, RefusesLaunchesThatNoGpuTakes) {
  EXPECT_THROW(launch(sums, dim3(1), dim3(2048), 0, queue_, static_cast<float*>(nullptr)),
               std::runtime_error);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
}

// Work behind pending work waits for it, in its own stream and in streams that wait for that
// stream's events.
TEST(EmulatedStreams, KeepTheirOrder) {
  device::Queue one(device::Kind::cuda), two(device::Kind::cuda);
  bool ready = false;
  std::string ran;
  cuda_on_cpu::submit_waiting(device::stream_of(one), [&] { return ready; });
  auto add = [&ran](char c) { return [&ran, c] { ran += c; }; };
  cuda_on_cpu::submit(device::stream_of(one), add('1'));
  device::Event event;
  event.record(one);
  cuda_on_cpu::submit(device::stream_of(two), add('a'));
  event.wait(two);
  cuda_on_cpu::submit(device::stream_of(two), add('b'));
  EXPECT_EQ(cudaStreamQuery(device::stream_of(two)), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
  EXPECT_EQ(ran, "a");
  ready = true;
  two.synchronize();
  EXPECT_EQ(ran, "a1b");
}

TEST(EmulatedStreams, AWatcherEndsAWaitWithoutEnd) {
  device::Queue queue(device::Kind::cuda);
  bool ready = false;
  cuda_on_cpu::submit_waiting(device::stream_of(queue), [&] { return ready; });
  int asked = 0;
  device::while_waiting([&] {
    if (++asked == 3) throw std::runtime_error("enough");
  });
  EXPECT_THROW(queue.synchronize(), std::runtime_error);
  device::while_waiting({});
  ready = true;
}

TEST_F(EmulatedGpu, ProfilersSeeStepsAndOps) {
  cuda_on_cpu::ranges.begun.clear();
  {
    base::Span step("step", 12);
    kernels::run(kernels::Fill{.y = buffer_.view(device::DType::f32).slice(0, 5), .value = 1},
                 queue_);
  }
  EXPECT_EQ(cuda_on_cpu::ranges.begun, (std::vector<std::string>{"step 12", "step 12/fill"}));
  EXPECT_TRUE(cuda_on_cpu::ranges.open.empty());
}

}  // namespace
