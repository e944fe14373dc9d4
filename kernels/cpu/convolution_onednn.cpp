// SPDX-License-Identifier: Apache-2.0
// CPU implementation of convolutions, by oneDNN. The first use of a shape makes a plan, which is
// kept. Many convolutions of single pixels without stride run as matrix products. Some gradients of
// weights run in tiles (weight_gradient.hpp).
#include "kernels/cast.hpp"
#include "kernels/cpu/convolution_plan.hpp"
#include "kernels/cpu/gemm_operands.hpp"
#include "kernels/cpu/instructions.hpp"
#include "kernels/cpu/weight_gradient.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/gemm.hpp"

namespace kernels {
namespace {

bool is_narrow(const View& operand) { return operand.type == DType::bf16 && bf16_is_native(); }

ConvolutionKey key_of(ConvolutionSide result, const ConvolutionShape& shape, const View& operand,
                      const View& images, Write write, const Queue& queue) {
  const bool narrow = is_narrow(operand), weights = result == ConvolutionSide::weights;
  return {.kind = {.result = result,
                   .shape = shape,
                   .narrow = narrow,
                   .narrow_result = narrow && !weights && images.type == DType::bf16},
          .accumulate = !weights && write == Write::accumulate,
          .fixed_order = queue.fixed_order(),
          .alone = queue.rows_alike(),
          .threads = queue.threads()};
}
ConvolutionKey key_of(const ConvolutionForward& a, const Queue& queue) {
  return key_of(ConvolutionSide::outputs, a.shape, a.x, a.y, Write::overwrite, queue);
}
ConvolutionKey key_of(const ConvolutionBackwardData& a, const Queue& queue) {
  return key_of(ConvolutionSide::inputs, a.shape, a.dy, a.dx, a.write, queue);
}
ConvolutionKey key_of(const ConvolutionBackwardWeights& a, const Queue& queue) {
  return key_of(ConvolutionSide::weights, a.shape, a.x, a.dw, a.write, queue);
}

// Convolutions pack their weights once, products pack them for each block. Measured on AVX-512:
// with so many pixels convolutions are 5 to 25 % faster, with fewer they are slower. In f32
// gradients of images are faster as products, and those of weights with more output channels.
constexpr int64_t kManyPixels = 196, kFewOutputs = 64;

bool runs_as_product(ConvolutionSide result, const ConvolutionShape& shape, const View& operand) {
  if (!shape.is_product()) return false;
  const bool converts = operand.type == DType::bf16 && !is_narrow(operand);
  if (converts || !onednn_has_avx512()) return true;
  return shape.window.height * shape.window.width < kManyPixels ||
         (result == ConvolutionSide::weights && shape.out > kFewOutputs) ||
         (result == ConvolutionSide::inputs && operand.type == DType::f32);
}
bool runs_as_product(const ConvolutionForward& a) {
  return runs_as_product(ConvolutionSide::outputs, a.shape, a.x);
}
bool runs_as_product(const ConvolutionBackwardData& a) {
  return runs_as_product(ConvolutionSide::inputs, a.shape, a.dy);
}
bool runs_as_product(const ConvolutionBackwardWeights& a) {
  return runs_as_product(ConvolutionSide::weights, a.shape, a.x);
}

void run_plan(const auto& a, Write write, View x, View y, View weights, Queue& queue) {
  plan_for(key_of(a, queue))
      .run({static_cast<char*>(x.data), static_cast<char*>(y.data),
            static_cast<char*>(weights.data)},
           write, queue);
}

bool is_widened(const View& operand) {
  CHECK(operand.type != DType::f16, "convolutions of f16 are for GPUs");
  return operand.type == DType::bf16 && !is_narrow(operand);
}

template <class Args>
void prepare(const Args& a, const Queue& queue) {
  if (a.shape.window.batch == 0) return;
  if (runs_as_product(a)) return prepare_cpu(product_of(a), queue);
  plan_for(key_of(a, queue));
}

}  // namespace

void run_cpu(const ConvolutionForward& a, Queue& queue) {
  if (a.y.count == 0) return;
  if (runs_as_product(a)) return run_cpu(product_of(a), queue);
  if (!is_widened(a.x)) return run_plan(a, Write::overwrite, a.x, a.y, a.weight, queue);
  ConvolutionForward f = a;
  WideBuffers& wide = wide_buffers();
  f.x = widened(a.x, wide.a, queue);
  f.weight = widened(a.weight, wide.b, queue);
  if (a.y.type == DType::bf16) f.y = float_view(wide.c, a.y.count);
  run_cpu(f, queue);
  if (a.y.type == DType::bf16) run_cpu(Cast{.y = a.y, .x = f.y}, queue);
}

void run_cpu(const ConvolutionBackwardData& a, Queue& queue) {
  if (a.dx.count == 0) return;
  if (runs_as_product(a)) return run_cpu(product_of(a), queue);
  if (!is_widened(a.dy)) return run_plan(a, a.write, a.dx, a.dy, a.weight, queue);
  ConvolutionBackwardData f = a;
  WideBuffers& wide = wide_buffers();
  f.dy = widened(a.dy, wide.a, queue);
  f.weight = widened(a.weight, wide.b, queue);
  if (a.dx.type == DType::bf16)
    f.dx = a.write == Write::accumulate ? widened(a.dx, wide.c, queue)
                                        : float_view(wide.c, a.dx.count);
  run_cpu(f, queue);
  if (a.dx.type == DType::bf16) run_cpu(Cast{.y = a.dx, .x = f.dx}, queue);
}

void run_cpu(const ConvolutionBackwardWeights& a, Queue& queue) {
  if (a.shape.window.batch == 0) {  // an empty sum
    if (a.write == Write::overwrite) run_cpu(Fill{.y = a.dw, .value = 0}, queue);
    return;
  }
  if (runs_in_tiles(a)) return run_in_tiles(a, queue);
  if (runs_as_product(a)) return run_cpu(product_of(a), queue);
  if (!is_widened(a.x)) return run_plan(a, a.write, a.x, a.dy, a.dw, queue);
  ConvolutionBackwardWeights f = a;
  WideBuffers& wide = wide_buffers();
  f.x = widened(a.x, wide.a, queue);
  f.dy = widened(a.dy, wide.c, queue);
  run_cpu(f, queue);
}

void prepare_cpu(const ConvolutionForward& a, const Queue& queue) { prepare(a, queue); }
void prepare_cpu(const ConvolutionBackwardData& a, const Queue& queue) { prepare(a, queue); }
void prepare_cpu(const ConvolutionBackwardWeights& a, const Queue& queue) {
  if (!runs_in_tiles(a)) prepare(a, queue);
}

}  // namespace kernels
