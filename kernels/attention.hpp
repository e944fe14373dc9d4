// SPDX-License-Identifier: Apache-2.0
// Multi-head scaled dot-product attention that never stores the score matrix (cappa.md 1.3). Scores
// are divided by sqrt(head_dim) in f32, and masked scores become the lowest float. A softmax of
// each row gives the weights, with optional dropout.
#pragma once

#include "base/random.hpp"
#include "kernels/dispatch.hpp"

namespace kernels {

enum class Mask {
  full,         // every query sees every key
  causal,       // query i sees keys j <= i (query_length == key_length)
  per_example,  // causal where flags[b] != 0, full elsewhere
};

struct AttentionShape {
  int64_t batch = 0, heads = 0, query_length = 0, key_length = 0, head_dim = 0;
  Mask mask = Mask::full;
  View flags{};  // u8 [batch], only for per_example
  // Dropout rate of the attention weights. Weight (b, h, i, j) has the draw index
  // (((first_example + b) * heads + h) * query_length + i) * key_length + j. It is kept if
  // stream.uniform(index) >= dropout; kept values are divided by 1 - dropout.
  float dropout = 0;
  base::Stream stream{};
  int64_t first_example = 0;
  // Optional packed rows, i32 [batch + 1]: example b has the rows [offsets[b], offsets[b + 1]) of q
  // and o (of k and v). They are the first rows of its sequence, at most query_length (key_length).
  // Without offsets every example has query_length (key_length) rows. Packed rows exclude dropout.
  View query_offsets{}, key_offsets{};
  // Elements from a row of q and dq (of k, v, dk and dv) to the next; 0: those of a row, so that
  // there are no gaps. On GPUs these tensors may be columns of one matrix, as of one product.
  int64_t query_stride = 0, key_stride = 0;

  int64_t row() const { return heads * head_dim; }  // elements of a row
  int64_t next_query() const { return query_stride ? query_stride : row(); }
  int64_t next_key() const { return key_stride ? key_stride : row(); }
};

// All tensors have one type: f32, bf16 or (on GPUs) f16. Only lse is always f32; it has
// query_length elements for every head. q and o are [batch, query_length, heads, head_dim], k and v
// are [batch, key_length, heads, head_dim], without gaps unless the shape has strides.
//
// For 16-bit tensors, softmax and sums are f32. The products read weights and gradients of scores
// that are rounded to the tensors' type. Forward rounds the weights before it divides by their sum.
struct AttentionForward {
  static constexpr Op op = Op::attention_forward;
  View o;  // output
  // optional [batch, heads, query_length]: log of the sum of exponentials, saved for backward
  View lse{};
  View q, k, v;
  AttentionShape shape;
};
size_t cuda_scratch(const AttentionForward&);

struct AttentionBackward {
  static constexpr Op op = Op::attention_backward;
  View dq, dk, dv;  // overwritten
  View d_o;         // gradient of o
  View q, k, v, o, lse;
  AttentionShape shape;
};
size_t cuda_scratch(const AttentionBackward&);

}  // namespace kernels
