// SPDX-License-Identifier: Apache-2.0
// Sizes of the scratch that ops need on GPUs. Ops and plans call these; plans are made on any
// machine. Ops that are not listed need a few kilobytes, far less than any product.
#include <algorithm>

#include "base/narrow.hpp"
#include "kernels/adamw_update.hpp"
#include "kernels/batch_norm.hpp"
#include "kernels/convolution.hpp"
#include "kernels/cuda/adafactor_tiles.hpp"
#include "kernels/cuda/attention_cublaslt.hpp"
#include "kernels/cuda/attention_cudnn.hpp"
#include "kernels/cuda/attention_padded.hpp"
#include "kernels/cuda/convolution_cudnn.hpp"
#include "kernels/cuda/embedding_plan.hpp"
#include "kernels/cuda/gemm_finish.hpp"
#include "kernels/cuda/launch_shapes.hpp"
#include "kernels/embedding.hpp"
#include "kernels/gemm.hpp"
#include "kernels/group_norm.hpp"
#include "kernels/layer_norm.hpp"
#include "kernels/layer_scale.hpp"
#include "kernels/lion_update.hpp"
#include "kernels/momentum_update.hpp"
#include "kernels/square_sums.hpp"
#include "kernels/trust.hpp"

namespace kernels {

static_assert(kSharedScratch <= kGemmWorkspace);

// cuBLASLt has no epilogue for a bias before GELU's derivative. A residual must have c's type. Rows
// of the argument of GELU must be multiples of 16 bytes.
bool is_one_kernel(const Gemm& a) {
  if (!a.bias.none() && !a.gelu_of.none()) return false;
  if (!a.gelu.none() && !a.gelu_of.none()) return false;
  if (!a.residual.none() && a.c.type != DType::f32) return false;
  const int64_t gelu_row = !a.gelu.none() ? a.leading_of_c() : !a.gelu_of.none() ? a.n : 0;
  return gelu_row % 8 == 0;
}

size_t cuda_scratch(const Gemm& a) {
  // Sums to accumulate need memory beside the workspace. If no kernel with sums is used, ColumnSum
  // needs scratch instead.
  if (!a.sums.none())
    return std::max(kGemmWorkspace + size_t(a.n) * sizeof(float), cuda_scratch(sums_of(a)));
  if (a.m == 0 || a.n == 0 || a.k == 0) return 0;
  const bool apart = !is_one_kernel(a) || has_wide_gelu(a);  // with tf32 the latter is not used
  return kGemmWorkspace + (apart ? size_t(a.m * a.n) * sizeof(float) : 0);
}

size_t cuda_scratch(const ColumnSum& a) {
  return size_t(column_sum_cuts(a.m).count() * a.n) * sizeof(float);
}

size_t cuda_scratch(const LayerNormBackward& a) {
  if (a.dscale.none() && a.dbias.none() && a.sums.none()) return 0;
  const int64_t kinds = a.sums.none() ? 2 : 3;
  return size_t(norm_backward_cuts(a.rows).count() * kinds * a.columns) * sizeof(float);
}

size_t cuda_scratch(const LayerScaleBackward& a) {
  if (a.dscale.none()) return 0;
  return size_t(column_sum_cuts(a.images * a.rows).count() * a.columns) * sizeof(float);
}

namespace {
template <class Args>
size_t scratch_of_batch_norm(const Args& a) {
  return size_t(a.parts * batch_norm_cuts(a.rows).count() * 2 * a.columns) * sizeof(double);
}
}  // namespace
size_t cuda_scratch(const BatchNormSums& a) { return scratch_of_batch_norm(a); }
size_t cuda_scratch(const BatchNormBackwardSums& a) { return scratch_of_batch_norm(a); }
size_t cuda_scratch(const GroupNormBackward& a) {
  return size_t(2 * a.images * a.groups) * sizeof(float);
}

size_t cuda_scratch(const EmbeddingBackward& a) {
  return size_t(EmbeddingPlan(a.rows, a.vocabulary, a.width).bytes());
}

namespace {
size_t scratch_of_sums(int64_t count, int64_t per_block, int64_t sums) {
  return size_t(partial_doubles(base::ceil_div(count, per_block), sums)) * sizeof(double);
}
}  // namespace

size_t cuda_scratch(const SquareSums& a) { return scratch_of_sums(a.x.count, kSquareCudaBlock, 1); }

size_t cuda_scratch(const AdafactorSums& a) {
  if (a.g.count == 0) return 0;
  if (!AdafactorTiles::fit(a.shape)) return scratch_of_sums(a.shape.over_y(), 1, 1);
  return size_t(AdafactorTiles(a.shape, a.begin, a.g.count).doubles()) * sizeof(double);
}

size_t cuda_scratch(const AdafactorRms& a) {
  return scratch_of_sums(a.gradient.count, kUpdateCudaBlock, 1);
}
size_t cuda_scratch(const AdafactorUpdate& a) {
  return scratch_of_sums(a.update.count(), kUpdateCudaBlock, 2);
}
size_t cuda_scratch(const AdamwUpdate& a) {
  return scratch_of_sums(a.update.count(), kUpdateCudaBlock, 2);
}
size_t cuda_scratch(const MomentumUpdate& a) {
  return scratch_of_sums(a.update.count(), kUpdateCudaBlock, 2);
}
size_t cuda_scratch(const LionUpdate& a) {
  return scratch_of_sums(a.update.count(), kUpdateCudaBlock, 2);
}
size_t cuda_scratch(const TrustSums& a) {
  return scratch_of_sums(a.weights.count, kUpdateCudaBlock, 2);
}
size_t cuda_scratch(const ApplyUpdate& a) {
  return scratch_of_sums(a.update.count(), kUpdateCudaBlock, 2);
}

// Limit of the scratch for scores of f32 attention: bytes for each matrix of scores.
constexpr int64_t kMostScores = int64_t{128} << 20;

bool is_for_products(const AttentionShape& s, DType type) {
  return type == DType::f32 && s.batch > 0 && s.dropout == 0;
}

ProductScratch::ProductScratch(const AttentionShape& s, int matrices, int64_t padded_bytes)
    : stride(base::round_up(s.key_length, 8)),
      examples(std::clamp(kMostScores / (4 * s.query_length * stride), int64_t{1}, s.batch)),
      scores(int64_t(kGemmWorkspace)),
      matrix(base::round_up(4 * examples * s.query_length * stride, 256)),
      copies(base::round_up(scores + matrices * matrix, 256)),
      bytes(copies + padded_bytes) {}

bool is_for_cudnn(const AttentionShape& s, DType type) {
  return type != DType::f32 && s.batch > 0 && s.dropout == 0 && s.head_dim % 8 == 0 &&
         s.head_dim <= 128;
}

CudnnScratch::CudnnScratch(const AttentionShape& s, int64_t workspace, int64_t padded_bytes)
    : sums(base::round_up(workspace, 256)),
      seen(sums + base::round_up(4 * s.batch * s.heads * s.query_length, 256)),
      copies(seen + base::round_up(4 * s.batch * s.query_length, 256)),
      bytes(copies + padded_bytes) {}

namespace {
// Bytes of copies of packed tensors: `each` tensors with the rows of queries, and `each` with the
// rows of keys.
int64_t padded_bytes_of(const AttentionShape& s, DType type, int each) {
  auto copies = [&](const View& offsets, int64_t length) {
    return offsets.none()
               ? 0
               : each * base::round_up(
                            s.batch * length * s.heads * s.head_dim * device::size_of(type), 256);
  };
  return copies(s.query_offsets, s.query_length) + copies(s.key_offsets, s.key_length);
}

template <class Args>
size_t scratch_of_attention(const Args& a, int matrices, int64_t workspace) {
  if (is_for_cudnn(a.shape, a.q.type))
    return size_t(CudnnScratch(a.shape, workspace, padded_bytes(a)).bytes);
  if (is_for_products(a.shape, a.q.type))
    return size_t(ProductScratch(a.shape, matrices, padded_bytes(a)).bytes);
  return 0;
}
}  // namespace

int64_t padded_bytes(const AttentionForward& a) { return padded_bytes_of(a.shape, a.q.type, 2); }
int64_t padded_bytes(const AttentionBackward& a) {
  const int64_t lse = a.shape.query_offsets.none() ? 0 : base::round_up(a.lse.bytes(), 256);
  return padded_bytes_of(a.shape, a.q.type, 4) + lse;
}

size_t cuda_scratch(const AttentionForward& a) { return scratch_of_attention(a, 1, 0); }

// The workspace is that of cuDNN 9's plans on H100 and H200: they store the gradients of the
// scores, and sum them in a fixed order.
size_t cuda_scratch(const AttentionBackward& a) {
  const AttentionShape& s = a.shape;
  const int64_t scores = base::round_up(s.query_length, 64) * base::round_up(s.key_length, 128);
  return scratch_of_attention(a, 2, s.batch * s.heads * scores * 2);
}

// cuDNN may copy both images, with channels that fill its packs.
int64_t convolution_workspace(const ConvolutionShape& s, DType operands) {
  const Window& w = s.window;
  const int64_t images =
      w.pixels() * base::round_up(s.in, 8) + w.positions() * base::round_up(s.out, 8);
  return (int64_t{64} << 20) + images * device::size_of(operands);
}

ConvolutionScratch::ConvolutionScratch(const ConvolutionShape& s, DType weights_type,
                                       int64_t floats, int64_t workspace)
    : weights(base::round_up(workspace, 256)),
      image(base::round_up(weights + s.weights() * device::size_of(weights_type), 256)),
      bytes(image + 4 * floats) {}

namespace {
// `floats`: elements of images that are f32 although the operands are narrow.
template <class Args>
size_t scratch_of(const Args& a, DType operands, DType weights, int64_t floats) {
  if (a.shape.window.batch == 0) return 0;
  if (a.shape.is_product()) return cuda_scratch(product_of(a));
  const int64_t workspace = convolution_workspace(a.shape, operands);
  return size_t(ConvolutionScratch(a.shape, weights, floats, workspace).bytes);
}
}  // namespace

size_t cuda_scratch(const ConvolutionForward& a) {
  return scratch_of(a, a.x.type, a.weight.type, a.y.type != a.x.type ? a.y.count : 0);
}
size_t cuda_scratch(const ConvolutionBackwardData& a) {
  return scratch_of(a, a.dy.type, a.weight.type, a.dx.type != a.dy.type ? a.dx.count : 0);
}
size_t cuda_scratch(const ConvolutionBackwardWeights& a) {
  return scratch_of(a, a.x.type, a.dw.type, 0);
}

}  // namespace kernels
