// SPDX-License-Identifier: Apache-2.0
// What tests of the emulated GPU share: a queue, and kernels that run on a few numbers.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "device/memory.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/gemm.hpp"

namespace kernels {

// A variable of the environment while the object lives.
class Set {
 public:
  Set(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Set() { unsetenv(name_); }
  Set(const Set&) = delete;

 private:
  const char* name_;
};

class EmulatedGpu : public testing::Test {
 protected:
  EmulatedGpu() : queue_(device::Kind::cuda), buffer_(device::Kind::cuda, ledger_, "test", 256) {}
  // Returns the 64 numbers that a kernel makes of 0, 1, ..., 63.
  std::vector<float> run(void (*kernel)(float*), const char* order, unsigned blocks = 1) {
    const Set set("CUDA_ON_CPU_ORDER", order);
    std::vector<float> x(64);
    for (size_t i = 0; i < 64; ++i) x[i] = float(i);
    device::upload(buffer_.view(device::DType::f32), x.data(), queue_);
    launch(kernel, dim3(blocks), dim3(64), 0, queue_, static_cast<float*>(buffer_.data()));
    device::download(x.data(), buffer_.view(device::DType::f32), queue_);
    return x;
  }
  // Multiplies two matrices of 4 x 4, parts of the buffer, into a third one.
  void multiply(device::Queue& queue) {
    const device::View x = buffer_.view(device::DType::f32);
    kernels::run(Gemm{.c = x.slice(0, 16),
                      .a = x.slice(16, 16),
                      .b = x.slice(32, 16),
                      .m = 4,
                      .n = 4,
                      .k = 4},
                 queue);
  }
  device::Queue queue_;
  device::Ledger ledger_;
  device::Buffer buffer_;
};

}  // namespace kernels
