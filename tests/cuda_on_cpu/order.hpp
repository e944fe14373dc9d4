// SPDX-License-Identifier: Apache-2.0
// The order in which a kernel's threads or blocks run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace cuda_on_cpu {

class Order {
 public:
  Order() {
    const char* name = std::getenv("CUDA_ON_CPU_ORDER");
    reverse_ = name && std::string(name) == "reverse";
    random_ = name && std::string(name) == "random";
    const char* seed = std::getenv("CUDA_ON_CPU_SEED");
    if (random_ && seed) state_ ^= uint64_t(std::atoll(seed)) * 0x9e3779b97f4a7c15;
  }
  // Begins a turn of `count`, in another order than the last one if orders are random.
  void begin(size_t count) {
    count_ = count;
    if (!random_) return;
    if (shuffled_.size() != count) {
      shuffled_.resize(count);
      std::iota(shuffled_.begin(), shuffled_.end(), uint32_t(0));
    }
    for (size_t i = count; i > 1; --i) std::swap(shuffled_[i - 1], shuffled_[next() % i]);
  }
  size_t at(size_t i) const { return random_ ? shuffled_[i] : reverse_ ? count_ - 1 - i : i; }

 private:
  uint64_t next() {  // xorshift
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_ >> 16;
  }

  bool reverse_ = false, random_ = false;
  size_t count_ = 0;
  uint64_t state_ = 0x2545f4914f6cdd1d;
  std::vector<uint32_t> shuffled_;
};

}  // namespace cuda_on_cpu
