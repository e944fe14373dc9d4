// SPDX-License-Identifier: Apache-2.0
#include "models/decoders/caption_attention.hpp"

#include <algorithm>
#include <cmath>

#include "base/elementary.hpp"
#include "base/error.hpp"
#include "base/fused.hpp"
#include "device/memory.hpp"
#include "kernels/bf16_value.hpp"
#include "kernels/f16_value.hpp"

namespace models {

std::vector<float> values_of(device::Queue& queue, const device::View& view) {
  std::vector<float> out(size_t(view.count));
  if (view.type == device::DType::f32) {
    device::download(out.data(), view, queue);
    return out;
  }
  CHECK(view.type == device::DType::bf16 || view.type == device::DType::f16);
  std::vector<uint16_t> bits(out.size());
  device::download(bits.data(), view, queue);
  const bool bf16 = view.type == device::DType::bf16;
  std::transform(bits.begin(), bits.end(), out.begin(), [bf16](uint16_t x) {
    return bf16 ? kernels::loops::to_float(kernels::loops::Bf16{x})
                : kernels::loops::to_float(kernels::loops::F16{x});
  });
  return out;
}

std::vector<float> mean_attention(std::span<const float> q, std::span<const float> k,
                                  int64_t heads) {
  const size_t width = q.size(), dim = width / size_t(heads), rows = k.size() / width;
  CHECK(heads >= 1 && dim * size_t(heads) == width && rows * width == k.size());
  std::vector<double> mean(rows), weights(rows);
  for (size_t head = 0; head < width; head += dim) {
    for (size_t r = 0; r < rows; ++r) {
      double dot = 0;
      for (size_t i = head; i < head + dim; ++i)
        dot = base::fused(double(q[i]), double(k[r * width + i]), dot);
      weights[r] = dot / std::sqrt(double(dim));
    }
    const double largest = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (double& w : weights) {
      w = base::math::exp(w - largest);
      sum += w;
    }
    for (size_t r = 0; r < rows; ++r) mean[r] += weights[r] / sum / double(heads);
  }
  return {mean.begin(), mean.end()};
}

}  // namespace models
