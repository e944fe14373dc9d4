// SPDX-License-Identifier: Apache-2.0
// Attention of f32 tensors by cuBLASLt's products, with the scores of one head at a time in memory
// and a softmax between the products. The products serve all masks and packed rows, but no dropout.
// Products round their operands to tf32 where Queue::tf32 says so.
#pragma once

#include "kernels/attention.hpp"

namespace kernels {

// Run the op. Return false if products do not serve it, so that our own kernels must run. Level
// "mesh" is not served either: the library's choice of a kernel, and so the bits, may depend on
// the number of examples.
bool attention_by_products(const AttentionForward& a, Queue& queue);
bool attention_by_products(const AttentionBackward& a, Queue& queue);

// True if products may serve such tensors.
bool is_for_products(const AttentionShape& shape, DType type);

// The scratch of a call: the library's workspace, then `matrices` matrices of scores, then copies
// of packed tensors.
struct ProductScratch {
  ProductScratch(const AttentionShape& shape, int matrices, int64_t padded_bytes);
  int64_t stride;    // elements from one row of scores to the next, which helps alignment
  int64_t examples;  // whose scores are in memory at a time
  int64_t scores, matrix, copies, bytes;  // offset; bytes of a matrix; offset; size of all
};

}  // namespace kernels
