// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention_scores.hpp"
#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/launch.cuh"

namespace kernels {
namespace {

// A warp has one row of scores.
constexpr int kScoreWarps = 8;

// The row of the calling warp.
struct ScoreRow {
  bool exists;  // within the launch
  int example, query, lane;
  int64_t at;  // of its scores

  __device__ ScoreRow(const HeadScores& s, int queries) {
    const int64_t row = int64_t(blockIdx.x) * kScoreWarps + threadIdx.x / 32;
    exists = row < s.examples * queries;
    example = int(s.first + row / queries);
    query = int(row % queries);
    lane = int(threadIdx.x) % 32;
    at = row * s.stride;
  }
};

__global__ void softmax_rows(AttentionTensors<float> a, HeadScores s) {
  const ScoreRow row(s, a.query_length);
  if (!row.exists) return;
  const HeadRange r = head_range(a, row.example, int(s.head));
  const bool real = row.query < r.queries;
  const int seen = real ? r.visible(row.query) : 0;
  float* scores = s.data + row.at;
  float largest = -INFINITY, sum = 0;
  for (int j = row.lane; j < seen; j += 32) largest = fmaxf(largest, scores[j]);
  largest = a.scale * warp_max(largest);
  const float base = largest == -INFINITY ? 0.0f : largest;
  for (int j = row.lane; j < seen; j += 32) {
    scores[j] = expf(fmaf(a.scale, scores[j], -base));
    sum += scores[j];
  }
  sum = warp_sum(sum);
  for (int j = row.lane; j < a.key_length; j += 32) scores[j] = j < seen ? scores[j] / sum : 0.0f;
  if (a.lse && real && row.lane == 0)
    a.lse[(int64_t(row.example) * a.heads + s.head) * a.query_length + row.query] =
        base + logf(sum);
}

__global__ void softmax_gradient_rows(AttentionTensors<float> a, HeadScores s, float* d_weights) {
  const ScoreRow row(s, a.query_length);
  if (!row.exists) return;
  const HeadRange r = head_range(a, row.example, int(s.head));
  const bool real = row.query < r.queries;
  const int seen = real ? r.visible(row.query) : 0;
  float delta = 0, lse = 0;
  if (real) {
    const int64_t at = ((r.query_row + row.query) * a.heads + s.head) * a.dim;
    for (int d = row.lane; d < a.dim; d += 32) delta = fmaf(a.d_o[at + d], a.o[at + d], delta);
    lse = a.lse[(int64_t(row.example) * a.heads + s.head) * a.query_length + row.query];
  }
  delta = warp_sum(delta);
  float *weights = s.data + row.at, *gradients = d_weights + row.at;
  for (int j = row.lane; j < a.key_length; j += 32) {
    const float p = j < seen ? expf(fmaf(a.scale, weights[j], -lse)) : 0.0f;
    weights[j] = p;
    gradients[j] = j < seen ? p * (gradients[j] - delta) * a.scale : 0.0f;
  }
}

__global__ void seen_keys(int32_t* out, AttentionTensors<float> a, int64_t count) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const HeadRange r = head_range(a, int(i / a.query_length), 0);
  const int query = int(i % a.query_length);
  out[i] = query < r.queries ? r.visible(query) : 0;
}

dim3 blocks_of(const HeadScores& s, const AttentionShape& shape) {
  return blocks_for(s.examples * shape.query_length, kScoreWarps);
}

}  // namespace

void count_seen_keys(int32_t* out, const AttentionShape& shape, Queue& queue) {
  constexpr int kThreads = 256;
  const int64_t count = shape.batch * shape.query_length;
  launch(seen_keys, blocks_for(count, kThreads), dim3(kThreads), 0, queue, out,
         tensors_of<float>(shape), count);
}

void weights_of_scores(const HeadScores& scores, float* lse, const AttentionShape& shape,
                       Queue& queue) {
  AttentionTensors<float> a = tensors_of<float>(shape);
  a.lse = lse;
  launch(softmax_rows, blocks_of(scores, shape), dim3(32 * kScoreWarps), 0, queue, a, scores);
}

void gradients_of_scores(const HeadScores& scores, float* d_weights, const AttentionBackward& b,
                         Queue& queue) {
  AttentionTensors<float> a = tensors_of<float>(b.shape);
  a.lse = static_cast<float*>(b.lse.data);
  a.o = static_cast<const float*>(b.o.data);
  a.d_o = static_cast<const float*>(b.d_o.data);
  launch(softmax_gradient_rows, blocks_of(scores, b.shape), dim3(32 * kScoreWarps), 0, queue, a,
         scores, d_weights);
}

}  // namespace kernels
