// SPDX-License-Identifier: Apache-2.0
// Attention by cuDNN: graphs for both directions, their plans, and calls.
#include "kernels/cuda/attention_cudnn.hpp"

#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "device/cuda.hpp"
#include "kernels/cuda/attention_padded.hpp"
#include "kernels/cuda/attention_scores.hpp"
#include "kernels/cuda/graph_cudnn.hpp"
#include "kernels/paths.hpp"

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
  kSeen
};

constexpr auto kWide = CUDNN_DATA_FLOAT;

// Sizes and strides of the tensors of both directions. Memory has [batch, rows, heads, dim], which
// cuDNN sees as (batch, heads, rows, dim).
struct Sizes {
  int64_t b, h, queries, keys, d, next_query, next_key;
  explicit Sizes(const AttentionShape& s)
      : b(s.batch),
        h(s.heads),
        queries(s.query_length),
        keys(s.key_length),
        d(s.head_dim),
        next_query(s.next_query()),
        next_key(s.next_key()) {}
  Four rows(int64_t n) const { return {b, h, n, d}; }
  Four output_strides() const { return {queries * h * d, d, h * d, 1}; }
  Four query_strides() const { return {queries * next_query, d, next_query, 1}; }
  Four key_strides() const { return {keys * next_key, d, next_key, 1}; }
  Four turned_keys() const { return {b, h, d, keys}; }  // rows as columns
  Four turned_key_strides() const { return {keys * next_key, d, 1, next_key}; }
  Four scores() const { return {b, h, queries, keys}; }
  Four score_strides() const { return {h * queries * keys, queries * keys, keys, 1}; }
  Four turned_scores() const { return {b, h, keys, queries}; }
  Four turned_score_strides() const { return {h * queries * keys, queries * keys, 1, keys}; }
  Four sums() const { return {b, h, queries, 1}; }
  Four sum_strides() const { return {h * queries, queries, 1, 1}; }
};

// How a graph learns which keys a query sees.
enum class Seen {
  all,
  causal,  // the keys up to the query's number
  counted  // a table has the number of keys for each query of each example
};
Seen seen_of(const AttentionShape& s) {
  const bool causal = s.mask == Mask::causal;
  // Under a causal mask, keys that an example lacks come after all of its queries.
  if (s.mask == Mask::per_example || (!causal && !s.key_offsets.none())) return Seen::counted;
  return causal ? Seen::causal : Seen::all;
}

// Keeps the scores of the keys that a query sees.
Tensor masked(Graph& g, const Tensor& scores, const AttentionShape& s) {
  const Seen seen = seen_of(s);
  if (seen == Seen::all) return scores;
  Tensor column = g.like(scores, CUDNN_DATA_INT32), kept = g.like(scores, CUDNN_DATA_BOOLEAN),
         out = g.like(scores, kWide);
  if (seen == Seen::causal) {
    Tensor row = g.like(scores, CUDNN_DATA_INT32);
    g.pointwise(CUDNN_POINTWISE_GEN_INDEX, scores, row, kWide, 2);
    g.pointwise(CUDNN_POINTWISE_GEN_INDEX, scores, column, kWide, 3);
    g.pointwise(CUDNN_POINTWISE_CMP_GE, row, column, kept, CUDNN_DATA_BOOLEAN);
  } else {
    g.pointwise(CUDNN_POINTWISE_GEN_INDEX, scores, column, kWide, 3);
    g.pointwise(CUDNN_POINTWISE_CMP_LT, column,
                g.tensor(kSeen, {s.batch, 1, s.query_length, 1},
                         {s.query_length, s.query_length, 1, 1}, CUDNN_DATA_INT32),
                kept, CUDNN_DATA_BOOLEAN);
  }
  g.select(scores, g.scalar(kLowest), kept, out);
  return out;
}

// Builds the pattern that cuDNN recognises as attention and runs in one kernel: scores, softmax by
// row, weighted values.
Graph forward_graph(const AttentionShape& shape, cudnnDataType_t narrow) {
  Sizes s(shape);
  Graph g;
  Tensor q = g.tensor(kQ, s.rows(s.queries), s.query_strides(), narrow);
  Tensor k = g.tensor(kK, s.turned_keys(), s.turned_key_strides(), narrow);
  Tensor v = g.tensor(kV, s.rows(s.keys), s.key_strides(), narrow);
  Tensor o = g.tensor(kO, s.rows(s.queries), s.output_strides(), narrow);
  Tensor lse = g.tensor(kLse, s.sums(), s.sum_strides(), kWide);
  auto score = [&](cudnnDataType_t type) { return g.between(s.scores(), s.score_strides(), type); };
  auto sum = [&] { return g.between(s.sums(), s.sum_strides(), kWide); };

  Tensor product = score(kWide), scaled = score(kWide), less = score(kWide), power = score(kWide),
         weights = score(narrow);
  Tensor largest = sum(), total = sum(), log = sum();
  g.multiply(q, k, product);
  g.pointwise(CUDNN_POINTWISE_MUL, product, g.scalar(kScale), scaled);
  Tensor scores = masked(g, scaled, shape);
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
  Tensor q = g.tensor(kQ, s.rows(s.queries), s.query_strides(), narrow);
  Tensor k = g.tensor(kK, s.turned_keys(), s.turned_key_strides(), narrow);
  Tensor v = g.tensor(kV, s.turned_keys(), s.turned_key_strides(), narrow);
  Tensor o = g.tensor(kO, s.rows(s.queries), s.output_strides(), narrow);
  Tensor d_o = g.tensor(kDo, s.rows(s.queries), s.output_strides(), narrow);
  Tensor dq = g.tensor(kDq, s.rows(s.queries), s.query_strides(), narrow);
  Tensor dk = g.tensor(kDk, s.rows(s.keys), s.key_strides(), narrow);
  Tensor dv = g.tensor(kDv, s.rows(s.keys), s.key_strides(), narrow);
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
  g.pointwise(CUDNN_POINTWISE_EXP, masked(g, less, shape), weights);
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
  Tensor k_rows = g.between(s.rows(s.keys), s.key_strides(), narrow);
  g.reshape(k, k_rows);
  g.multiply(d_scaled, k_rows, dq);
  return g;
}

Graph graph_of(const AttentionShape& shape, DType type, bool backward) {
  const cudnnDataType_t narrow = type == DType::f16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
  return backward ? backward_graph(shape, narrow) : forward_graph(shape, narrow);
}

// The bits of attention repeat, so plans that cuDNN marks as nondeterministic are left out.
constexpr cudnn::Demands kRepeatable{.fixed_order = true};

// A plan, or cuDNN's reason to have none.
struct Found {
  std::unique_ptr<cudnn::Plan> plan;
  std::string problem;
};

// Returns null, and counts a fallback, if cuDNN has no plan.
const cudnn::Plan* plan_for(const AttentionShape& s, DType type, bool backward, Queue& queue) {
  using Key =
      std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, Seen, DType, bool>;
  // The shapes of a run are fixed, so plans are kept to its end.
  static std::map<Key, Found> plans;
  auto [it, added] = plans.try_emplace({s.batch, s.heads, s.query_length, s.key_length, s.head_dim,
                                        s.next_query(), s.next_key(), seen_of(s), type, backward});
  Found& found = it->second;
  if (added) try {
      found.plan = std::make_unique<cudnn::Plan>(graph_of(s, type, backward),
                                                 cudnn::handle_on(queue), "", kRepeatable);
    } catch (const base::Error& e) {
      found.problem = fmt::format(
          "attention {}: batch {}, {} heads of {}, {} x {}, {}: our own kernels run, which are "
          "slower: {}",
          backward ? "backward" : "forward", s.batch, s.heads, s.head_dim, s.query_length,
          s.key_length, device::name_of(type), e.what());
    }
  if (!found.plan) count_fallback(found.problem, queue);
  return found.plan.get();
}

// The scratch of one call.
struct Scratch {
  char* workspace;
  float* sums;
  int32_t* seen;
  char* copies;
  Scratch(const cudnn::Plan& plan, const AttentionShape& s, int64_t padded_bytes, Queue& queue) {
    const CudnnScratch places(s, int64_t(plan.workspace_bytes()), padded_bytes);
    workspace = static_cast<char*>(queue.scratch(size_t(places.bytes)));
    sums = reinterpret_cast<float*>(workspace + places.sums);
    seen = reinterpret_cast<int32_t*>(workspace + places.seen);
    copies = workspace + places.copies;
  }
};

constexpr float kLowestFloat = std::numeric_limits<float>::lowest(), kOneFloat = 1;

void add_mask(std::vector<cudnn::Argument>& arguments, const AttentionShape& s,
              const Scratch& scratch, Queue& queue) {
  const Seen seen = seen_of(s);
  if (seen != Seen::all) arguments.push_back({kLowest, &kLowestFloat});
  if (seen != Seen::counted) return;
  count_seen_keys(scratch.seen, s, queue);
  arguments.push_back({kSeen, scratch.seen});
}

}  // namespace

bool attention_by_cudnn(const AttentionForward& a, Queue& queue) {
  const AttentionShape& s = a.shape;
  if (!is_for_cudnn(s, a.q.type)) return false;
  const cudnn::Plan* plan = plan_for(with_padded_strides(s), a.q.type, false, queue);
  if (!plan) return false;
  Scratch scratch(*plan, s, padded_bytes(a), queue);
  const AttentionForward whole = padded(a, scratch.copies, queue);
  const float scale = 1 / std::sqrt(float(s.head_dim));
  std::vector<cudnn::Argument> arguments{{kQ, whole.q.data},
                                         {kK, whole.k.data},
                                         {kV, whole.v.data},
                                         {kO, whole.o.data},
                                         {kScale, &scale}};
  arguments.push_back({kLse, a.lse.none() ? scratch.sums : a.lse.data});
  add_mask(arguments, s, scratch, queue);
  plan->run(cudnn::handle_on(queue), arguments, scratch.workspace);
  take_results(whole, a, queue);
  return true;
}

bool attention_by_cudnn(const AttentionBackward& a, Queue& queue) {
  const AttentionShape& s = a.shape;
  if (!is_for_cudnn(s, a.q.type)) return false;
  const cudnn::Plan* plan = plan_for(with_padded_strides(s), a.q.type, true, queue);
  if (!plan) return false;
  Scratch scratch(*plan, s, padded_bytes(a), queue);
  const AttentionBackward whole = padded(a, scratch.copies, queue);
  const float scale = 1 / std::sqrt(float(s.head_dim));
  std::vector<cudnn::Argument> arguments{
      {kQ, whole.q.data},     {kK, whole.k.data},     {kV, whole.v.data},   {kO, whole.o.data},
      {kDo, whole.d_o.data},  {kDq, whole.dq.data},   {kDk, whole.dk.data}, {kDv, whole.dv.data},
      {kLse, whole.lse.data}, {kDelta, scratch.sums}, {kScale, &scale},     {kOne, &kOneFloat}};
  add_mask(arguments, s, scratch, queue);
  plan->run(cudnn::handle_on(queue), arguments, scratch.workspace);
  take_results(whole, a, queue);
  return true;
}

std::string cudnn_plan_problem(const AttentionShape& shape, DType type, bool backward,
                               const std::string& device) {
  try {
    cudnn::Plan plan(graph_of(shape, type, backward), nullptr, device, kRepeatable);
    return "";
  } catch (const base::Error& e) {
    return e.what();
  }
}

}  // namespace kernels
