// SPDX-License-Identifier: Apache-2.0
// Tests that the emulated GPU refuses launches as real ones do, and keeps errors as they do.
#include <cmath>
#include <functional>
#include <string>

#include "device/gpu.hpp"
#include "device/staging.hpp"
#include "emulated_gpu.hpp"
#include "kernels/cuda/block.cuh"
#include "kernels/elementwise.hpp"
#include "tests/unit/cuda_on_cpu/error_text.hpp"

namespace {

using namespace kernels;

__global__ void fills_dynamic(float* x) {
  dynamic_shared<float>()[threadIdx.x] = 1;
  x[threadIdx.x] = dynamic_shared<float>()[threadIdx.x];
}
template <int kCount>
__global__ void fills_both(float* x) {
  __shared__ float more[kCount];
  more[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  dynamic_shared<float>()[threadIdx.x] = more[63 - threadIdx.x];
}
constexpr auto fills_4_kib = fills_both<1024>;

class LaunchRules : public EmulatedGpu {
 protected:
  cudaError_t start(void (*kernel)(float*), size_t dynamic_shared_bytes, dim3 grid = dim3(1)) {
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = dim3(64);
    config.dynamicSmemBytes = dynamic_shared_bytes;
    config.stream = device::stream_of(queue_);
    return cudaLaunchKernelEx(&config, kernel, static_cast<float*>(buffer_.data()));
  }
  static cudaError_t ask(void (*kernel)(float*), int bytes) {
    return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  }
  ~LaunchRules() override {
    cuda_on_cpu::break_gpu(cudaSuccess);
    cudaGetLastError();
  }
};

TEST_F(LaunchRules, MuchSharedMemoryIsForKernelsThatAskedForIt) {
  constexpr int kKib = 1024;
  EXPECT_EQ(start(fills_dynamic, 48 * kKib), cudaSuccess);
  EXPECT_EQ(start(fills_dynamic, 60 * kKib), cudaErrorInvalidValue);
  ASSERT_EQ(ask(fills_dynamic, 60 * kKib), cudaSuccess);
  EXPECT_EQ(start(fills_dynamic, 60 * kKib), cudaSuccess);
  EXPECT_EQ(start(fills_dynamic, 61 * kKib), cudaErrorInvalidValue);
  EXPECT_EQ(start(fills_4_kib, 60 * kKib), cudaErrorInvalidValue) << "another kernel";
  EXPECT_EQ(ask(fills_dynamic, 227 * kKib), cudaSuccess);
  EXPECT_EQ(ask(fills_dynamic, 228 * kKib), cudaErrorInvalidValue);
}

TEST_F(LaunchRules, SharedVariablesCountToo) {
  constexpr int kKib = 1024;
  EXPECT_EQ(start(fills_4_kib, 44 * kKib), cudaSuccess);
  EXPECT_EQ(start(fills_4_kib, 45 * kKib), cudaErrorInvalidValue);
  EXPECT_EQ(ask(fills_4_kib, 223 * kKib), cudaSuccess);
  EXPECT_EQ(ask(fills_4_kib, 224 * kKib), cudaErrorInvalidValue);
}

TEST_F(LaunchRules, OpsAskForMuchSharedMemory) {
  launch(fills_both<512>, dim3(1), dim3(64), 60 * 1024, queue_,
         static_cast<float*>(buffer_.data()));
  launch(fills_both<2048>, dim3(1), dim3(64), 45 * 1024, queue_,
         static_cast<float*>(buffer_.data()));
}

TEST_F(LaunchRules, AnEmptyGridIsAnError) {
  for (dim3 grid : {dim3(0), dim3(1, 0), dim3(1, 1, 0), dim3(1, 65536)})
    EXPECT_EQ(start(fills_dynamic, 256, grid), cudaErrorInvalidConfiguration);
}

TEST_F(LaunchRules, LibrariesFindAnErrorThatNobodyCleared) {
  multiply(queue_);
  EXPECT_EQ(start(fills_dynamic, 256, dim3(0)), cudaErrorInvalidConfiguration);
  const std::string text = error_of([&] { multiply(queue_); });
  EXPECT_NE(text.find("CUBLAS_STATUS_EXECUTION_FAILED"), text.npos) << text;
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  multiply(queue_);
}

// cudaErrorNotReady would stay as the last error, too.
TEST_F(LaunchRules, AskingLeavesNoError) {
  bool ready = false;
  int asked = 0;
  cuda_on_cpu::submit_waiting(device::stream_of(queue_), [&] { return ready; });
  device::Event event;
  event.record(queue_);
  device::while_waiting([&] {
    EXPECT_EQ(cuda_on_cpu::last_error(), cudaSuccess);
    ready = ++asked == 3;
  });
  event.synchronize("a test");
  device::while_waiting({});
  EXPECT_EQ(asked, 3);
  multiply(queue_);
}

TEST_F(LaunchRules, ABrokenGpuStaysBroken) {
  cuda_on_cpu::break_gpu(cudaErrorIllegalAddress);
  const auto fill = [&] {
    kernels::run(Fill{.y = buffer_.view(device::DType::f32), .value = 1}, queue_);
  };
  for (int turn = 0; turn < 2; ++turn) {
    for (const std::function<void()>& call : std::initializer_list<std::function<void()>>{
             fill, [&] { multiply(queue_); }, [&] { queue_.synchronize(); },
             [&] { device::Buffer(device::Kind::cuda, ledger_, "test", 256); }})
      EXPECT_NE(error_of(call), "");
    EXPECT_NE(error_of(fill).find("cudaErrorIllegalAddress"), std::string::npos) << error_of(fill);
    EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  }
}

// Keeps a value for the next block, or for the next launch.
__global__ void keeps(float* x) {
  __shared__ float kept;
  if (threadIdx.x == 0 && blockIdx.x == 0 && x[63] == 63) kept = 5;
  __syncthreads();
  if (threadIdx.x == 1) x[blockIdx.x] = kept;
}
template <class T>
__global__ void keeps_parts(float* x) {
  __shared__ BlockShared<T> kept;
  if (threadIdx.x == 0 && blockIdx.x == 0 && x[63] == 63) kept.warp_values[3] = T(5);
  __syncthreads();
  if (threadIdx.x == 1) x[blockIdx.x] = float(kept.warp_values[3]);
}

TEST_F(EmulatedGpu, SharedMemoryIsUndefinedBeforeEachBlock) {
  for (auto* kernel : {keeps, keeps_parts<float>, keeps_parts<double>}) {
    const std::vector<float> x = run(kernel, "forward", 3);
    EXPECT_EQ(x[0], 5);
    EXPECT_TRUE(std::isnan(x[1])) << x[1];
    EXPECT_TRUE(std::isnan(x[2])) << x[2];
  }
}

}  // namespace
