// SPDX-License-Identifier: Apache-2.0
// Makes the table of one instruction set. vector_math.hpp explains how this file is compiled.
#pragma once

#include "kernels/cpu/attention_head.hpp"
#include "kernels/cpu/batch_norm_loops.hpp"
#include "kernels/cpu/decode_loops.hpp"
#include "kernels/cpu/direct_convolution_loops.hpp"
#include "kernels/cpu/pool_loops.hpp"
#include "kernels/cpu/product_loops.hpp"
#include "kernels/cpu/vector_rows.hpp"
#include "kernels/cpu/weight_gradient_loops.hpp"

namespace kernels {
namespace {

template <Log kLog, class T>
constexpr ActivationLoops<T> activation_loops() {
  return {gelu_forward<T>,
          gelu_backward<T>,
          layer_norm_forward<T>,
          dropout<T>,
          add_rows<T>,
          attention_forward<kLog, T>,
          attention_backward<T>,
          attention_forward_scratch<T>,
          attention_backward_scratch<T>,
          decode_attention<T>,
          row_product<T>,
          batch_norm_forward<T>,
          batch_norm_sums<T>,
          batch_norm_gradient_sums<T>,
          batch_norm_backward<T>,
          max_pool_forward<T>,
          max_pool_backward<T>,
          pack_panels_loop<T>(),
          add_tile_loop<T>(),
          pack_lines<T>,
          pack_columns<T>};
}

template <Log kLog>
constexpr VectorTable vector_loops(const char* name) {
  return {
      .name = name,
      .f32 = activation_loops<kLog, float>(),
      .bf16 = activation_loops<kLog, uint16_t>(),
      .to_bf16 = convert<uint16_t, float>,
      .from_bf16 = convert<float, uint16_t>,
      .exp_of = exp_of,
      .softmax_xent_row = softmax_xent_row<kLog>,
      .layer_norm_backward = layer_norm_backward,
      .convolve_tile = kConvolveTile,
      .product = {kProductRows, kProductColumns, kProductRowsStep, multiply_tile, multiply_lines},
      .pairs = kPairs<uint16_t>};
}

}  // namespace
}  // namespace kernels
