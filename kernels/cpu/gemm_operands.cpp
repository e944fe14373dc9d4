// SPDX-License-Identifier: Apache-2.0
// Keys and operands of oneDNN's products, and buffers of widened operands.
#include "kernels/cpu/gemm_operands.hpp"

#include "kernels/cast.hpp"
#include "kernels/cpu/gemm_blocks.hpp"

namespace kernels {

WideBuffers& wide_buffers() {
  thread_local WideBuffers buffers;
  return buffers;
}

View float_view(std::vector<float>& buffer, int64_t count) {
  if (int64_t(buffer.size()) < count) buffer.resize(size_t(count));
  return device::view(buffer.data(), count);
}

View widened(const View& x, std::vector<float>& buffer, Queue& queue) {
  View y = float_view(buffer, x.count);
  run_cpu(Cast{.y = y, .x = x}, queue);
  return y;
}

GemmKey key_of(const Gemm& a, const Queue& queue) {
  const bool bf16 = a.a.type == DType::bf16, alike = queue.rows_alike() && !a.trans_a,
             narrow = bf16 && bf16_is_native();
  GemmKey key{.m = a.m,
              .n = a.n,
              .k = a.k,
              .lda = a.leading_of_a(),
              .ldb = a.leading_of_b(),
              .ldc = a.leading_of_c(),
              .trans_a = a.trans_a,
              .trans_b = a.trans_b,
              .bias = !a.bias.none(),
              .residual = !a.residual.none(),
              .accumulate = a.write == Write::accumulate,
              .fixed_order = queue.fixed_order(),
              .narrow = narrow,
              .narrow_c = a.c.type == DType::bf16,
              .gelu = !a.gelu.none(),
              .gelu_of = !a.gelu_of.none(),
              .rows_alike = alike,
              // Blocks of rows_alike are small, and the library would pack a bf16 b for each.
              .packed_b = alike && narrow,
              .threads = queue.threads()};
  // A block of a transposed a touches every stored row, so a is widened as a whole, as for products
  // without blocks.
  key.widen = bf16 && !narrow && !a.trans_a &&
              (runs_in_blocks(key) || a.m >= kRowsWorthCutting * queue.threads());
  return key;
}

GemmOperands operands_of(const Gemm& a, size_t i, Queue& queue) {
  const View bias = a.bias.none() || a.bias.type == DType::f32
                        ? a.bias
                        : widened(a.bias, wide_buffers().bias[i], queue);
  CHECK(a.residual.none() || a.residual.data != a.c.data, "gemm: residual may not be c");
  return {static_cast<char*>(a.c.data),
          static_cast<char*>(a.a.data),
          static_cast<char*>(a.b.data),
          bias.none() ? nullptr : bias.f32(),
          a.residual.none() ? nullptr : a.residual.f32(),
          static_cast<char*>(a.gelu.data),
          static_cast<char*>(a.gelu_of.data)};
}

}  // namespace kernels
