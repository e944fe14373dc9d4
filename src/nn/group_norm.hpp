// SPDX-License-Identifier: Apache-2.0
// Group normalisation (torch.nn.GroupNorm): the channels of an image are cut into groups, and the
// pixels and channels of a group share mean and variance. The result of an image depends on that
// image alone, so training and evaluation compute the same, and ranks exchange nothing. The layer
// has no states.
//
// Images, `Saved` and `Passed` are the same as for BatchNorm (batch_norm.hpp). x is [examples,
// per_example, height, width, `width`].
#pragma once

#include <span>

#include "kernels/group_norm.hpp"
#include "nn/batch_norm.hpp"

namespace nn {

struct GroupNorm {
  int scale = -1, bias = -1;  // optional [width]
  int64_t width = 0;
  int64_t groups = 32;  // of channels; must divide width
  float eps = 1e-5f;

  using Saved = BatchNorm::Saved;  // f32 [images, width]: each channel has its group's numbers
  using Passed = BatchNorm::Passed;
  Saved make_saved(Context& ctx, bool saved, const ImageSize& size) const;
  // Fills saved from x.
  void measure(Context& ctx, View x, const ImageSize& size, const Saved& saved) const;
  // Computes dx and the gradients of scale and bias of all sizes of images. relu: a ReLU followed.
  void backward(Context& ctx, std::span<const Passed> all, bool relu) const;
};

}  // namespace nn
