// SPDX-License-Identifier: Apache-2.0
// The norm of a layer of images: batch norm or group norm, which differ in the values that share
// mean and variance. Both normalise by the same op.
#pragma once

#include <variant>

#include "nn/batch_norm.hpp"
#include "nn/group_norm.hpp"

namespace nn {

class ImageNorm {
 public:
  using Saved = BatchNorm::Saved;
  using Passed = BatchNorm::Passed;

  ImageNorm() = default;
  ImageNorm(const BatchNorm& norm) : kind_(norm) {}
  ImageNorm(const GroupNorm& norm) : kind_(norm) {}

  // The functions of BatchNorm. Of the size, make_saved needs only `per_example`.
  Saved make_saved(Context& ctx, bool saved, const ImageSize& size) const {
    if (const auto* group = std::get_if<GroupNorm>(&kind_))
      return group->make_saved(ctx, saved, size);
    return batch().make_saved(ctx, saved);
  }
  void measure(Context& ctx, View x, const ImageSize& size, const Saved& saved,
               BatchNormCall call = {}) const {
    if (const auto* group = std::get_if<GroupNorm>(&kind_))
      return group->measure(ctx, x, size, saved);
    batch().measure(ctx, x, size, saved, call);
  }
  kernels::BatchNormValues values(const Context& ctx, const Saved& saved) const {
    return std::visit(
        [&](const auto& norm) { return norm_values(ctx, norm.scale, norm.bias, saved); }, kind_);
  }
  kernels::BatchNormValues saved_values(Context& ctx, const Saved& saved) const {
    return keep_parameters(ctx, values(ctx, saved));
  }
  kernels::BatchNormForward normalise(const Context& ctx, View x, const ImageSize& size,
                                      const kernels::BatchNormValues& values, View y) const {
    const int64_t width = std::visit([](const auto& norm) { return norm.width; }, kind_);
    return normalised_by(ctx, x, size, values, width, y);
  }
  kernels::BatchNormForward normalise(const Context& ctx, View x, const ImageSize& size,
                                      const Saved& saved, View y) const {
    return normalise(ctx, x, size, values(ctx, saved), y);
  }
  void backward(Context& ctx, std::span<const Passed> all, bool relu) const {
    std::visit([&](const auto& norm) { norm.backward(ctx, all, relu); }, kind_);
  }

 private:
  const BatchNorm& batch() const { return std::get<BatchNorm>(kind_); }
  std::variant<BatchNorm, GroupNorm> kind_;
};

}  // namespace nn
