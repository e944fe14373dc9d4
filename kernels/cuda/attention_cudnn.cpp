// SPDX-License-Identifier: Apache-2.0
// Attention by cuDNN: graphs for both directions, their plans, and calls.
#include "kernels/cuda/attention_cudnn.hpp"

#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "base/log.hpp"
#include "device/cuda.hpp"
#include "kernels/cuda/graph_cudnn.hpp"

namespace kernels {
namespace {

using cudnn::Four;
using cudnn::Graph;
using cudnn::Tensor;

enum Id : int64_t {
  kQ = 1,
  kK,
  kV,
  kO,
  kLse,
  kScale,
  kLowest,
  kOne,
  kDo,
  kDq,
  kDk,
  kDv,
  kDelta,
  kShift
};

constexpr auto kWide = CUDNN_DATA_FLOAT;

// Sizes and strides of the tensors of both directions. Memory has [batch, rows, heads, dim], which
// cuDNN sees as (batch, heads, rows, dim).
struct Sizes {
  int64_t b, h, queries, keys, d;
  explicit Sizes(const AttentionShape& s)
      : b(s.batch), h(s.heads), queries(s.query_length), keys(s.key_length), d(s.head_dim) {}
  Four rows(int64_t n) const { return {b, h, n, d}; }
  Four row_strides(int64_t n) const { return {n * h * d, d, h * d, 1}; }
  Four turned(int64_t n) const { return {b, h, d, n}; }  // rows as columns
  Four turned_strides(int64_t n) const { return {n * h * d, d, 1, h * d}; }
  Four scores() const { return {b, h, queries, keys}; }
  Four score_strides() const { return {h * queries * keys, queries * keys, keys, 1}; }
  Four turned_scores() const { return {b, h, keys, queries}; }
  Four turned_score_strides() const { return {h * queries * keys, queries * keys, 1, keys}; }
  Four sums() const { return {b, h, queries, 1}; }
  Four sum_strides() const { return {h * queries, queries, 1, 1}; }
};

// Keeps score (i, j) where i + shift >= j; only per-example masks have a shift other than 0.
Tensor masked(Graph& g, const Tensor& scores, Mask mask, int64_t batch) {
  if (mask == Mask::full) return scores;
  Tensor row = g.like(scores, CUDNN_DATA_INT32), column = g.like(scores, CUDNN_DATA_INT32);
  Tensor seen = g.like(scores, CUDNN_DATA_BOOLEAN), out = g.like(scores, kWide);
  g.pointwise(CUDNN_POINTWISE_GEN_INDEX, scores, row, kWide, 2);
  if (mask == Mask::per_example) {
    Tensor shifted = g.like(scores, CUDNN_DATA_INT32);
    g.pointwise(CUDNN_POINTWISE_ADD, row,
                g.tensor(kShift, {batch, 1, 1, 1}, {1, 1, 1, 1}, CUDNN_DATA_INT32), shifted,
                CUDNN_DATA_INT32);
    row = shifted;
  }
  g.pointwise(CUDNN_POINTWISE_GEN_INDEX, scores, column, kWide, 3);
  g.pointwise(CUDNN_POINTWISE_CMP_GE, row, column, seen, CUDNN_DATA_BOOLEAN);
  g.select(scores, g.scalar(kLowest), seen, out);
  return out;
}

// Builds the pattern that cuDNN recognises as attention and runs in one kernel: scores, softmax by
// row, weighted values.
Graph forward_graph(const AttentionShape& shape, cudnnDataType_t narrow) {
  Sizes s(shape);
  Graph g;
  Tensor q = g.tensor(kQ, s.rows(s.queries), s.row_strides(s.queries), narrow);
  Tensor k = g.tensor(kK, s.turned(s.keys), s.turned_strides(s.keys), narrow);
  Tensor v = g.tensor(kV, s.rows(s.keys), s.row_strides(s.keys), narrow);
  Tensor o = g.tensor(kO, s.rows(s.queries), s.row_strides(s.queries), narrow);
  Tensor lse = g.tensor(kLse, s.sums(), s.sum_strides(), kWide);
  auto score = [&](cudnnDataType_t type) { return g.between(s.scores(), s.score_strides(), type); };
  auto sum = [&] { return g.between(s.sums(), s.sum_strides(), kWide); };

  Tensor product = score(kWide), scaled = score(kWide), less = score(kWide), power = score(kWide),
         weights = score(narrow);
  Tensor largest = sum(), total = sum(), log = sum();
  g.multiply(q, k, product);
  g.pointwise(CUDNN_POINTWISE_MUL, product, g.scalar(kScale), scaled);
  Tensor scores = masked(g, scaled, shape.mask, s.b);
  g.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, largest);
  g.pointwise(CUDNN_POINTWISE_SUB, scores, largest, less);
  g.pointwise(CUDNN_POINTWISE_EXP, less, power);
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, power, total);
  g.pointwise(CUDNN_POINTWISE_LOG, total, log);
  g.pointwise(CUDNN_POINTWISE_ADD, largest, log, lse);
  g.pointwise(CUDNN_POINTWISE_DIV, power, total, weights);
  g.multiply(weights, v, o);
  return g;
}

// Builds the graph of backward. It computes dq as one product, not as a sum of parts in f32, so the
// order of the sum is fixed.
Graph backward_graph(const AttentionShape& shape, cudnnDataType_t narrow) {
  Sizes s(shape);
  Graph g;
  Tensor q = g.tensor(kQ, s.rows(s.queries), s.row_strides(s.queries), narrow);
  Tensor k = g.tensor(kK, s.turned(s.keys), s.turned_strides(s.keys), narrow);
  Tensor v = g.tensor(kV, s.turned(s.keys), s.turned_strides(s.keys), narrow);
  Tensor o = g.tensor(kO, s.rows(s.queries), s.row_strides(s.queries), narrow);
  Tensor d_o = g.tensor(kDo, s.rows(s.queries), s.row_strides(s.queries), narrow);
  Tensor dq = g.tensor(kDq, s.rows(s.queries), s.row_strides(s.queries), narrow);
  Tensor dk = g.tensor(kDk, s.rows(s.keys), s.row_strides(s.keys), narrow);
  Tensor dv = g.tensor(kDv, s.rows(s.keys), s.row_strides(s.keys), narrow);
  Tensor lse = g.tensor(kLse, s.sums(), s.sum_strides(), kWide),
         delta = g.tensor(kDelta, s.sums(), s.sum_strides(), kWide);
  Tensor scale = g.scalar(kScale);
  auto score = [&](cudnnDataType_t type = kWide) {
    return g.between(s.scores(), s.score_strides(), type);
  };
  auto turned = [&] { return g.between(s.turned_scores(), s.turned_score_strides(), narrow); };

  Tensor both =
      g.between(s.rows(s.queries), {s.h * s.queries * s.d, s.queries * s.d, s.d, 1}, kWide);
  Tensor sum = g.between(s.sums(), s.sum_strides(), kWide);
  g.pointwise(CUDNN_POINTWISE_MUL, d_o, o, both);
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, both, sum);
  g.pointwise(CUDNN_POINTWISE_MUL, sum, g.scalar(kOne), delta);

  Tensor product = score(), scaled = score(), less = score(), weights = score(),
         weights_turned = turned();
  g.multiply(q, k, product);
  g.pointwise(CUDNN_POINTWISE_MUL, product, scale, scaled);
  g.pointwise(CUDNN_POINTWISE_SUB, scaled, lse, less);
  g.pointwise(CUDNN_POINTWISE_EXP, masked(g, less, shape.mask, s.b), weights);
  g.reshape(weights, weights_turned);
  g.multiply(weights_turned, d_o, dv);

  Tensor d_weights = score(), centred = score(), d_scores = score(), d_scaled = score(),
         d_turned = turned();
  g.multiply(d_o, v, d_weights);
  g.pointwise(CUDNN_POINTWISE_SUB, d_weights, delta, centred);
  g.pointwise(CUDNN_POINTWISE_MUL, centred, weights, d_scores);
  g.pointwise(CUDNN_POINTWISE_MUL, d_scores, scale, d_scaled);
  g.reshape(d_scaled, d_turned);
  g.multiply(d_turned, q, dk);
  Tensor k_rows = g.between(s.rows(s.keys), s.row_strides(s.keys), narrow);
  g.reshape(k, k_rows);
  g.multiply(d_scaled, k_rows, dq);
  return g;
}

Graph graph_of(const AttentionShape& shape, DType type, bool backward) {
  const cudnnDataType_t narrow = type == DType::f16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
  return backward ? backward_graph(shape, narrow) : forward_graph(shape, narrow);
}

// Returns null if cuDNN has no plan.
const cudnn::Plan* plan_for(const AttentionShape& s, DType type, bool backward, Queue& queue) {
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, Mask, DType, bool>;
  // The shapes of a run are fixed, so plans are kept to its end.
  static std::map<Key, std::unique_ptr<cudnn::Plan>> plans;
  auto [it, added] = plans.try_emplace(
      {s.batch, s.heads, s.query_length, s.key_length, s.head_dim, s.mask, type, backward});
  if (added) try {
      it->second =
          std::make_unique<cudnn::Plan>(graph_of(s, type, backward), cudnn::handle_on(queue));
    } catch (const base::Error& e) {
      base::log::warning(
          "attention {}: batch {}, {} heads, {} x {}: our own kernels run, which are slower: {}",
          backward ? "backward" : "forward", s.batch, s.heads, s.query_length, s.key_length,
          e.what());
    }
  return it->second.get();
}

// The scratch of one call: cuDNN's workspace, one float for each query and head, shifts of masks.
struct Scratch {
  char* workspace;
  float* sums;
  int32_t* shifts;
  Scratch(const cudnn::Plan& plan, const AttentionShape& s, Queue& queue) {
    const CudnnScratch places(s, int64_t(plan.workspace_bytes()));
    workspace = static_cast<char*>(queue.scratch(size_t(places.bytes)));
    sums = reinterpret_cast<float*>(workspace + places.sums);
    shifts = reinterpret_cast<int32_t*>(workspace + places.shifts);
    if (s.mask == Mask::per_example) mask_shifts(shifts, s, queue);
  }
};

constexpr float kLowestFloat = std::numeric_limits<float>::lowest(), kOneFloat = 1;

void add_mask(std::vector<cudnn::Argument>& arguments, const AttentionShape& s,
              const Scratch& scratch) {
  if (s.mask != Mask::full) arguments.push_back({kLowest, &kLowestFloat});
  if (s.mask == Mask::per_example) arguments.push_back({kShift, scratch.shifts});
}

}  // namespace

bool attention_by_cudnn(const AttentionForward& a, Queue& queue) {
  const AttentionShape& s = a.shape;
  if (!is_for_cudnn(s, a.q.type)) return false;
  const cudnn::Plan* plan = plan_for(s, a.q.type, false, queue);
  if (!plan) return false;
  Scratch scratch(*plan, s, queue);
  const float scale = 1 / std::sqrt(float(s.head_dim));
  std::vector<cudnn::Argument> arguments{
      {kQ, a.q.data}, {kK, a.k.data}, {kV, a.v.data}, {kO, a.o.data}, {kScale, &scale}};
  arguments.push_back({kLse, a.lse.none() ? scratch.sums : a.lse.data});
  add_mask(arguments, s, scratch);
  plan->run(cudnn::handle_on(queue), arguments, scratch.workspace);
  return true;
}

bool attention_by_cudnn(const AttentionBackward& a, Queue& queue) {
  const AttentionShape& s = a.shape;
  if (!is_for_cudnn(s, a.q.type)) return false;
  const cudnn::Plan* plan = plan_for(s, a.q.type, true, queue);
  if (!plan) return false;
  Scratch scratch(*plan, s, queue);
  const float scale = 1 / std::sqrt(float(s.head_dim));
  std::vector<cudnn::Argument> arguments{
      {kQ, a.q.data},     {kK, a.k.data},         {kV, a.v.data},   {kO, a.o.data},
      {kDo, a.d_o.data},  {kDq, a.dq.data},       {kDk, a.dk.data}, {kDv, a.dv.data},
      {kLse, a.lse.data}, {kDelta, scratch.sums}, {kScale, &scale}, {kOne, &kOneFloat}};
  add_mask(arguments, s, scratch);
  plan->run(cudnn::handle_on(queue), arguments, scratch.workspace);
  return true;
}

std::string cudnn_plan_problem(const AttentionShape& shape, DType type, bool backward,
                               const std::string& device) {
  try {
    cudnn::Plan plan(graph_of(shape, type, backward), nullptr, device);
    return "";
  } catch (const base::Error& e) {
    return e.what();
  }
}

}  // namespace kernels
