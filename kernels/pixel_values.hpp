// SPDX-License-Identifier: Apache-2.0
// Pixels as a trunk's first product reads them: bytes become their values, and values are rounded
// to the activations' type.
#pragma once

#include "kernels/patchify.hpp"

namespace kernels {

struct PixelValues {
  static constexpr Op op = Op::pixel_values;
  View y;              // [count], f32, bf16 or f16
  View x;              // [count], u8 or f32
  PixelRange range{};  // of bytes
};

}  // namespace kernels
