// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/random.hpp"
#include "kernel_rows.hpp"
#include "kernels/bf16_value.hpp"
#include "kernels/elementwise.hpp"

namespace gpu_check {

using namespace kernels;

View Memory::make(int64_t count, DType type) {
  buffers_.emplace_back(queue_.kind(), ledger_, "bench",
                        std::max<int64_t>(count, 1) * device::size_of(type));
  return {buffers_.back().data(), type, count};
}

void Memory::spread(const View& all, int64_t known) {
  for (; known < all.count; known *= 2) {
    const int64_t n = std::min(known, all.count - known);
    kernels::run(Copy{all.slice(known, n), all.slice(0, n)}, queue_);
  }
}

View Memory::normals(int64_t count, DType type) {
  static const std::vector<float> wide = [] {
    std::vector<float> out(1 << 16);
    const base::Stream stream(1, "gpu_check");
    for (size_t i = 0; i < out.size(); ++i) out[i] = float(0.5 * stream.normal(i));
    return out;
  }();
  View v = make(count, type);
  const int64_t known = std::min<int64_t>(count, int64_t(wide.size()));
  if (type == DType::f32) {
    device::upload(v.slice(0, known), wide.data(), queue_);
  } else {
    std::vector<uint16_t> narrow;
    for (float x : wide) narrow.push_back(loops::round_to_bf16(x).bits);
    device::upload(v.slice(0, known), narrow.data(), queue_);
    queue_.synchronize();
  }
  spread(v, known);
  return v;
}

View Memory::filled(int64_t count, float value) {
  View v = make(count, DType::f32);
  kernels::run(Fill{v, value}, queue_);
  return v;
}

View Memory::zeros(int64_t count, DType type) { return make(count, type); }

View Memory::integers(const std::vector<int32_t>& values) {
  View v = make(int64_t(values.size()), DType::i32);
  device::upload(v, values.data(), queue_);
  queue_.synchronize();
  return v;
}

}  // namespace gpu_check
