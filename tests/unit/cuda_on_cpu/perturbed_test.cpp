// SPDX-License-Identifier: Apache-2.0
// Tests that inexact functions and sums of the emulated GPU break tolerances that a real one
// breaks, and no others.
#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "emulated_gpu.hpp"
#include "kernels/bf16_value.hpp"
#include "kernels/gemm.hpp"

namespace {

using namespace kernels;

__global__ void powers(float* x) { x[threadIdx.x] = expf(x[threadIdx.x] / 16); }
__global__ void fast_powers(float* x) { x[threadIdx.x] = __expf(x[threadIdx.x] / 16); }
__global__ void rounds_twice(float* x) {
  x[threadIdx.x] = __fadd_rn(__fmul_rn(x[threadIdx.x], 0.1f), 0.1f);
}
__global__ void rounds_once(float* x) { x[threadIdx.x] = x[threadIdx.x] * 0.1f + 0.1f; }

class Perturbed : public EmulatedGpu {
 protected:
  ~Perturbed() override { cuda_on_cpu::perturbation = 0; }
  // Returns the largest difference of a kernel's results from those without errors, in units in the
  // last place.
  int off(void (*kernel)(float*)) {
    cuda_on_cpu::perturbation = 0;
    const std::vector<float> exact = run(kernel, "forward");
    cuda_on_cpu::perturbation = 5;
    const std::vector<float> x = run(kernel, "forward");
    EXPECT_EQ(x, run(kernel, "reverse")) << "errors follow from the argument";
    int most = 0;
    for (size_t i = 0; i < x.size(); ++i)
      most = std::max(most, std::abs(std::bit_cast<int>(x[i]) - std::bit_cast<int>(exact[i])));
    return most;
  }
  // Returns the largest relative error of products of positive numbers.
  double error_of_products() {
    constexpr int64_t kSide = 8, kInner = 4096;
    device::Buffer a(device::Kind::cuda, ledger_, "test", kSide * kInner * 2),
        c(device::Kind::cuda, ledger_, "test", kSide * kSide * 4);
    const View x = a.view(DType::bf16), y = c.view(DType::f32).slice(0, kSide * kSide);
    const auto value = [](int64_t i) {
      return loops::round_to_bf16(1 + float(i * 37 % 101) / 101);
    };
    device::write_on_host(x, queue_, [&](View v) {
      for (int64_t i = 0; i < kSide * kInner; ++i)
        static_cast<uint16_t*>(v.data)[i] = value(i).bits;
    });
    kernels::run(Gemm{.c = y, .a = x, .b = x, .m = kSide, .n = kSide, .k = kInner, .trans_b = true},
                 queue_);
    std::vector<float> out(kSide * kSide);
    device::download(out.data(), y, queue_);
    double worst = 0;
    for (int64_t i = 0; i < kSide; ++i)
      for (int64_t j = 0; j < kSide; ++j) {
        double sum = 0;
        for (int64_t t = 0; t < kInner; ++t)
          sum += double(to_float(value(i * kInner + t))) * double(to_float(value(j * kInner + t)));
        worst = std::max(worst, std::abs(double(out[size_t(i * kSide + j)]) - sum) / sum);
      }
    return worst;
  }
};

// Only tf32 takes the library's GELU for results in f32, because its tanh is inexact.
TEST_F(Perturbed, FusedGeluIsInexact) {
  constexpr int64_t kSide = 8, kCount = kSide * kSide;
  device::Buffer memory(device::Kind::cuda, ledger_, "test", 3 * kCount * 4);
  const View all = memory.view(DType::f32), x = all.slice(0, kCount),
             y = all.slice(2 * kCount, kCount);
  device::write_on_host(x, queue_, [](View v) {
    for (int64_t i = 0; i < kCount; ++i) v.f32()[i] = float(i % 7) / 8;
  });
  auto gelu = [&](uint32_t seed) {
    cuda_on_cpu::perturbation = seed;
    kernels::run(Gemm{.c = all.slice(kCount, kCount),
                      .a = x,
                      .b = x,
                      .m = kSide,
                      .n = kSide,
                      .k = kSide,
                      .gelu = y},
                 queue_);
    std::vector<float> out(kCount);
    device::download(out.data(), y, queue_);
    return out;
  };
  for (bool tf32 : {false, true}) {
    queue_.set_tf32(tf32);
    const std::vector<float> exact = gelu(0), inexact = gelu(5);
    float most = 0;
    for (size_t i = 0; i < exact.size(); ++i)
      most = std::max(most, std::abs(inexact[i] - exact[i]) / (1 + exact[i]));
    if (tf32)
      EXPECT_GT(most, 1e-5f);
    else
      EXPECT_LT(most, 1e-6f);
  }
}

TEST_F(Perturbed, FunctionsAreOffByWhatIsDocumented) {
  EXPECT_EQ(off(powers), 1);
  EXPECT_GT(off(fast_powers), 2);
  EXPECT_LE(off(fast_powers), 2 + int(1.173 * 63 / 16));
}

// 1e-6 holds for sums in f32 that round, but not for those of tensor cores.
TEST_F(Perturbed, TensorCoresBreakATolerance) {
  EXPECT_LT(error_of_products(), 1e-6);
  cuda_on_cpu::perturbation = 5;
  EXPECT_GT(error_of_products(), 1e-6);
  EXPECT_LT(error_of_products(), 1e-4);
}

TEST_F(Perturbed, TheCompilerFusesAsNvccDoes) {
  EXPECT_NE(run(rounds_twice, "forward"), run(rounds_once, "forward"));
}

}  // namespace
