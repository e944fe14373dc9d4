// SPDX-License-Identifier: Apache-2.0
// Tests that the emulated GPU finds races between threads and work of streams without an order. The
// compiler reports the accesses of the kernels in this file (-fsanitize=thread), and the process
// runs with CUDA_ON_CPU_WATCH=1.
#include <string>

#include "device/staging.hpp"
#include "emulated_gpu.hpp"
#include "kernels/cuda/block.cuh"

namespace {

using namespace kernels;

enum class Order { none, shuffle, warp, block };

template <Order order>
__device__ void wait() {
  if (order == Order::shuffle) __shfl_xor_sync(kAllLanes, 1, 1);
  if (order == Order::warp) __syncwarp();
  if (order == Order::block) __syncthreads();
}
// Thread t reads what thread t ^ kOther wrote.
template <Order order, unsigned kOther>
__global__ void swaps(float* x) {
  __shared__ float all[64];
  all[threadIdx.x] = x[threadIdx.x];
  wait<order>();
  x[threadIdx.x] = all[threadIdx.x ^ kOther];
}
template <Order order>
__global__ void swaps_dynamic(float* x) {
  auto* all = dynamic_shared<double>();
  all[threadIdx.x] = double(x[threadIdx.x]);
  wait<order>();
  x[threadIdx.x] = float(all[63 - threadIdx.x]);
}
template <Order order>
__global__ void swaps_in_place(float* x) {
  const float other = x[63 - threadIdx.x];
  wait<order>();
  x[threadIdx.x] = other;
}
// All threads write the same number.
__global__ void agrees(float* x) { x[5] = 1; }
// Every thread writes its own number, if there is one block.
__global__ void counts(float* x) { x[threadIdx.x] = float(threadIdx.x); }
__global__ void counts_bytes(float* x) {
  reinterpret_cast<uint8_t*>(x)[threadIdx.x] = uint8_t(threadIdx.x);
}
// All threads read what one of them wrote.
template <Order order>
__global__ void hears(float* x) {
  __shared__ float said;
  if (threadIdx.x == 17) said = x[17];
  wait<order>();
  x[threadIdx.x] = said;
}
__global__ void reads_one(const float* x, float* y) { y[threadIdx.x] = x[0]; }
__global__ void writes_one(float* x) { x[threadIdx.x] = 1; }

class Watch : public EmulatedGpu {
 protected:
  Watch() : second_(device::Kind::cuda), other_(device::Kind::cuda, ledger_, "test", 256) {}
  template <class F>
  static std::string problem_of(const F& call) {
    try {
      call();
    } catch (const std::exception& e) {
      return e.what();
    }
    return "";
  }
  std::string races(void (*kernel)(float*), unsigned blocks = 1) {
    return problem_of(
        [&] { launch(kernel, dim3(blocks), dim3(64), 64 * sizeof(double), queue_, numbers()); });
  }
  static void expect_race(const std::string& found) {
    EXPECT_NE(found.find("a race in "), found.npos) << found;
  }
  static void expect_hazard(const std::string& found) {
    EXPECT_NE(found.find("streams without an order"), found.npos) << found;
  }
  float* numbers() const { return static_cast<float*>(buffer_.data()); }
  float* others() const { return static_cast<float*>(other_.data()); }
  static void fill(float* x, device::Queue& queue) {
    device::check_cuda(cudaMemsetAsync(x, 0, 256, device::stream_of(queue)), "a test");
  }
  device::Queue second_;
  device::Buffer other_;
};

TEST_F(Watch, FindsAMissingBarrier) {
  EXPECT_EQ(races(swaps<Order::block, 32>), "");
  for (auto* kernel :
       {swaps<Order::none, 32>, swaps<Order::warp, 32>, swaps<Order::shuffle, 1>,
        swaps<Order::none, 1>, swaps_dynamic<Order::none>, hears<Order::none>, hears<Order::warp>})
    expect_race(races(kernel));
  EXPECT_EQ(races(swaps<Order::warp, 1>), "");
  EXPECT_EQ(races(swaps_dynamic<Order::block>), "");
  EXPECT_EQ(races(hears<Order::block>), "");
}

TEST_F(Watch, FindsRacesInDeviceMemory) {
  expect_race(races(swaps_in_place<Order::none>));
  EXPECT_EQ(races(swaps_in_place<Order::block>), "");
  expect_race(races(agrees));
  EXPECT_EQ(races(counts), "");
  EXPECT_EQ(races(counts_bytes), "");
  expect_race(races(counts, 2));
  EXPECT_EQ(races(counts), "") << "launches of a stream are ordered";
}

TEST_F(Watch, NamesTheKernel) {
  const std::string found = races(agrees);
  EXPECT_NE(found.find("agrees(float*): thread 1 writes byte 20 of 256 of device memory"),
            found.npos)
      << found;
}

TEST_F(Watch, FindsAMissingEvent) {
  device::Event event;
  for (bool waits : {true, false}) {
    fill(numbers(), queue_);
    event.record(queue_);
    if (waits) event.wait(second_);
    const std::string found =
        problem_of([&] { launch(reads_one, dim3(1), dim3(64), 0, second_, numbers(), others()); });
    if (waits)
      EXPECT_EQ(found, "");
    else
      expect_hazard(found);
    queue_.synchronize();
    second_.synchronize();
  }
}

TEST_F(Watch, AnEventOrdersOnlyWhatIsBeforeIt) {
  device::Event event;
  event.record(queue_);
  launch(writes_one, dim3(1), dim3(64), 0, queue_, numbers());
  event.wait(second_);
  expect_hazard(problem_of([&] { fill(numbers(), second_); }));
}

TEST_F(Watch, ReadingTogetherIsNoHazard) {
  fill(numbers(), queue_);
  queue_.synchronize();
  launch(reads_one, dim3(1), dim3(64), 0, queue_, numbers(), others());
  float x = 1;
  device::download(&x, buffer_.view(device::DType::f32).slice(0, 1), second_);
  EXPECT_EQ(x, 0);
  expect_hazard(problem_of([&] {
    launch(reads_one, dim3(1), dim3(64), 0, queue_, numbers(), others());
    fill(numbers(), second_);
  }));
}

TEST_F(Watch, LibrariesAreWatchedToo) {
  multiply(queue_);
  queue_.synchronize();
  multiply(second_);
  expect_hazard(problem_of([&] { multiply(queue_); }));
}

}  // namespace
