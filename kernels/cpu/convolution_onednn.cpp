// SPDX-License-Identifier: Apache-2.0
// CPU implementation of convolutions, by oneDNN. The first use of a shape makes a plan, which is
// kept. Many convolutions of single pixels without stride run as matrix products. Some outputs and
// gradients of weights run in tiles (direct_convolution.hpp, weight_gradient.hpp).
#include <algorithm>

#include "base/narrow.hpp"
#include "kernels/cast.hpp"
#include "kernels/cpu/convolution_plan.hpp"
#include "kernels/cpu/direct_convolution.hpp"
#include "kernels/cpu/gemm_operands.hpp"
#include "kernels/cpu/instructions.hpp"
#include "kernels/cpu/portable.hpp"
#include "kernels/cpu/weight_gradient.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/gemm.hpp"

namespace kernels {
namespace {

bool is_narrow(const View& operand) { return operand.type == DType::bf16 && bf16_is_native(); }

bool is_widened(const View& operand) {
  CHECK(operand.type != DType::f16, "convolutions of f16 are for GPUs");
  return operand.type == DType::bf16 && !is_narrow(operand);
}

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
// with at least kManyPixels pixels convolutions are 5 to 25 % faster, with fewer they are slower.
// In f32 gradients of images are faster as products, and so are gradients of weights with more than
// kFewOutputs output channels. Products widen bf16 operands block by block. For images this is 1.0
// to 2.0 times as fast as whole images at a time, except for sums over 2,048 channels with AVX2
// (0.7). Gradients of weights are slower that way.
constexpr int64_t kManyPixels = 196, kFewOutputs = 64;

bool runs_as_product(ConvolutionSide result, const ConvolutionShape& shape, const View& operand) {
  if (!shape.is_product()) return false;
  if (is_widened(operand)) return result != ConvolutionSide::weights;
  if (!onednn_has_avx512()) return true;
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

// Calls f(first image, images) for the images that are widened at one time: as many as the caches
// may hold, but at least 8, and 4 for each thread unless bits must not depend on their number. They
// are a multiple of 8, so that threads can share them.
void for_wide_chunks(const ConvolutionShape& s, const Queue& queue, const auto& f) {
  constexpr int64_t kFloats = 4 << 20, kImagesOfThread = 4, kUnit = 8;
  const int64_t batch = s.window.batch;
  const int64_t of_image = (s.inputs() + s.outputs()) / batch;
  const int64_t least =
      queue.fixed_order() ? kUnit : std::max(kUnit, kImagesOfThread * queue.threads());
  const int64_t chunks = base::ceil_div(batch, std::max(least, kFloats / of_image));
  const int64_t images = base::round_up(base::ceil_div(batch, chunks), kUnit);
  for (int64_t first = 0; first < batch; first += images) f(first, std::min(images, batch - first));
}

// Returns `images` of the batch, from `first`.
View images_of(const View& view, const ConvolutionShape& s, int64_t first, int64_t images) {
  const int64_t size = view.count / s.window.batch;
  return view.slice(first * size, images * size);
}

void run_widened(const ConvolutionForward& a, Queue& queue) {
  WideBuffers& wide = wide_buffers();
  ConvolutionForward f = a;
  f.weight = widened(a.weight, wide.b, queue);
  for_wide_chunks(a.shape, queue, [&](int64_t first, int64_t images) {
    const View y = images_of(a.y, a.shape, first, images);
    f.shape.window.batch = images;
    f.x = widened(images_of(a.x, a.shape, first, images), wide.a, queue);
    f.y = y.type == DType::bf16 ? float_view(wide.c, y.count) : y;
    run_cpu(f, queue);
    if (y.type == DType::bf16) run_cpu(Cast{.y = y, .x = f.y}, queue);
  });
}

void run_widened(const ConvolutionBackwardData& a, Queue& queue) {
  WideBuffers& wide = wide_buffers();
  ConvolutionBackwardData f = a;
  f.weight = widened(a.weight, wide.b, queue);
  for_wide_chunks(a.shape, queue, [&](int64_t first, int64_t images) {
    const View dx = images_of(a.dx, a.shape, first, images);
    f.shape.window.batch = images;
    f.dy = widened(images_of(a.dy, a.shape, first, images), wide.a, queue);
    f.dx = dx.type != DType::bf16         ? dx
           : a.write == Write::accumulate ? widened(dx, wide.c, queue)
                                          : float_view(wide.c, dx.count);
    run_cpu(f, queue);
    if (dx.type == DType::bf16) run_cpu(Cast{.y = dx, .x = f.dx}, queue);
  });
}

void run_widened(const ConvolutionBackwardWeights& a, Queue& queue) {
  WideBuffers& wide = wide_buffers();
  ConvolutionBackwardWeights f = a;
  for_wide_chunks(a.shape, queue, [&](int64_t first, int64_t images) {
    f.shape.window.batch = images;
    f.x = widened(images_of(a.x, a.shape, first, images), wide.a, queue);
    f.dy = widened(images_of(a.dy, a.shape, first, images), wide.c, queue);
    run_cpu(f, queue);
    f.write = Write::accumulate;
  });
}

void prepare_as(const auto& a, const Queue& queue) {
  if (runs_as_product(a)) return prepare_cpu(product_of(a), queue);
  plan_for(key_of(a, queue));
}

// `a` has the types of widened operands.
void prepare_chunks(auto a, const Queue& queue) {
  for_wide_chunks(a.shape, queue, [&](int64_t, int64_t images) {
    auto chunk = a;
    chunk.shape.window.batch = images;
    prepare_cpu(chunk, queue);
  });
}

}  // namespace

void run_cpu(const ConvolutionForward& a, Queue& queue) {
  if (a.y.count == 0) return;
  if (bits_are_portable()) return run_portable(a, queue);
  if (runs_as_product(a)) return run_cpu(product_of(a), queue);
  if (is_widened(a.x)) return run_widened(a, queue);
  if (runs_directly(a)) return run_directly(a, queue);
  run_plan(a, Write::overwrite, a.x, a.y, a.weight, queue);
}

void run_cpu(const ConvolutionBackwardData& a, Queue& queue) {
  if (a.dx.count == 0) return;
  if (bits_are_portable()) return run_portable(a, queue);
  if (runs_as_product(a)) return run_cpu(product_of(a), queue);
  if (is_widened(a.dy)) return run_widened(a, queue);
  run_plan(a, a.write, a.dx, a.dy, a.weight, queue);
}

void run_cpu(const ConvolutionBackwardWeights& a, Queue& queue) {
  if (a.shape.window.batch == 0) {  // an empty sum
    if (a.write == Write::overwrite) run_cpu(Fill{.y = a.dw, .value = 0}, queue);
    return;
  }
  if (bits_are_portable()) return run_portable(a, queue);
  if (is_widened(a.x)) return run_widened(a, queue);
  if (runs_in_tiles(a)) return run_in_tiles(a, queue);
  if (runs_as_product(a)) return run_cpu(product_of(a), queue);
  run_plan(a, a.write, a.x, a.dy, a.dw, queue);
}

void prepare_cpu(const ConvolutionForward& a, const Queue& queue) {
  if (a.shape.window.batch == 0 || bits_are_portable()) return;
  if (runs_as_product(a) || !is_widened(a.x)) {
    if (!runs_directly(a)) prepare_as(a, queue);
    return;
  }
  ConvolutionForward f = a;
  f.x.type = f.weight.type = f.y.type = DType::f32;
  prepare_chunks(f, queue);
}

void prepare_cpu(const ConvolutionBackwardData& a, const Queue& queue) {
  if (a.shape.window.batch == 0 || bits_are_portable()) return;
  if (runs_as_product(a) || !is_widened(a.dy)) return prepare_as(a, queue);
  ConvolutionBackwardData f = a;
  f.dy.type = f.weight.type = f.dx.type = DType::f32;
  prepare_chunks(f, queue);
}

void prepare_cpu(const ConvolutionBackwardWeights& a, const Queue& queue) {
  if (a.shape.window.batch == 0 || bits_are_portable()) return;
  if (!is_widened(a.x)) {
    if (!runs_in_tiles(a)) prepare_as(a, queue);
    return;
  }
  ConvolutionBackwardWeights f = a;
  f.x.type = f.dy.type = DType::f32;
  prepare_chunks(f, queue);
}

}  // namespace kernels
