// Image to rows of patches in (row, column, channel) order (cappa.md 1.4): the convolution of the stem becomes a product.
#pragma once

#include "kernels/dispatch.hpp"

namespace kernels {

struct Patchify {
  static constexpr Op op = Op::patchify;
  View patches;           // f32 or bf16 [batch * (height/patch) * (width/patch_width), patch * patch_width * 3]
  View image;             // f32 [batch, height, width, 3]
  int64_t batch = 0, height = 0, width = 0;
  int64_t patch = 0, patch_width = 0;  // patch_width 0: square
  int64_t columns() const { return patch_width ? patch_width : patch; }  // of one patch
};
void check(const Patchify&);
Cost cost(const Patchify&);
void run_cpu(const Patchify&, Queue&);
void run_cuda(const Patchify&, Queue&);

}  // namespace kernels
