// SPDX-License-Identifier: Apache-2.0
// Convolution, with or without a bias (ssl.md 1.1). Images are [examples, per_example, height,
// width, channels], so that a slice of examples is contiguous.
#pragma once

#include <span>

#include "kernels/convolution.hpp"
#include "nn/context.hpp"

namespace nn {

// The images of a micro-batch: each example has `per_example` of equal size (views of one
// resolution).
struct ImageSize {
  int64_t per_example = 1, height = 0, width = 0;

  int64_t pixels() const { return per_example * height * width; }  // of an example
  bool operator==(const ImageSize&) const = default;
};

struct Convolution {
  int weight = -1;  // [out, in / groups, kernel, kernel]
  int bias = -1;    // optional [out]; the output is then f32
  int64_t in = 0, out = 0;
  int64_t kernel = 1, stride = 1, padding = 0, groups = 1;

  ImageSize output_size(const ImageSize& x) const;
  kernels::ConvolutionShape shape(int64_t examples, const ImageSize& x) const;

  // y [.., out] = x [.., in] * weight. x and y have the activations' type; x is rounded if it is
  // f32 and activations are narrower, and y may be f32.
  void forward(Context& ctx, View x, const ImageSize& size, View y) const;

  // dx = (+=) the gradient of x, which has size `size`. dy may be f32, as x in forward.
  void backward_data(Context& ctx, View dy, const ImageSize& size, View dx,
                     Write write = Write::overwrite) const;

  // Images of one size that passed through the layer, and the gradient of their outputs.
  struct Passed {
    View x, dy;
    ImageSize size;  // of x
  };
  // Computes the gradients of weight and bias from all sizes of images at once, because the sums of
  // a slice may not depend on the mesh: slice by slice, and within a slice in the order of `all`.
  void backward_weights(Context& ctx, std::span<const Passed> all) const;
};

}  // namespace nn
