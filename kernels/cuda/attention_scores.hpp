// SPDX-License-Identifier: Apache-2.0
// Kernels of attention for libraries that compute its products: which keys a query sees, and the
// softmax of scores in memory with its gradient. Each row of scores is one query's, and its sums
// have a fixed order.
#pragma once

#include "kernels/attention.hpp"

namespace kernels {

// Writes the number n of keys that each query sees, i32 [batch, query_length]: keys [0, n). A query
// of padding sees none.
void count_seen_keys(int32_t* out, const AttentionShape& shape, Queue& queue);

// The scores of one head: f32 [examples, query_length, stride]. A row holds key_length scores; the
// rest of it is padding. `first` is the number of the first example.
struct HeadScores {
  float* data;
  int64_t stride, head, first, examples;
};

// Replaces products q . k by the weights, and writes lse, which may be null.
void weights_of_scores(const HeadScores& scores, float* lse, const AttentionShape& shape,
                       Queue& queue);

// Replaces products q . k by the weights, and `d_weights`, the products d_o . v, by the gradients
// of q . k. d_weights has the layout of the scores. o, d_o and lse come from `a`, whose rows may
// be packed.
void gradients_of_scores(const HeadScores& scores, float* d_weights, const AttentionBackward& a,
                         Queue& queue);

}  // namespace kernels
