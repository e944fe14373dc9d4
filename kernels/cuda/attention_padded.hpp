// SPDX-License-Identifier: Apache-2.0
// Attention over packed rows, for libraries that know whole sequences only. Packed tensors are
// copied to [batch, length, heads, head_dim], with zeros for the rows that an example lacks, and
// results are copied back. Products outside of attention still see no such rows.
#pragma once

#include "kernels/attention.hpp"

namespace kernels {

// Bytes of the copies; 0 without packed rows.
int64_t padded_bytes(const AttentionForward& a);
int64_t padded_bytes(const AttentionBackward& a);

// Returns the shape with the strides of the op on copies: these have no gaps.
AttentionShape with_padded_strides(AttentionShape s);

// Copies the packed operands to `memory`, which has padded_bytes(a). Returns the op on the copies.
// Queries that an example lacks have lse = 0. Without packed rows this is the op itself.
AttentionForward padded(const AttentionForward& a, char* memory, Queue& queue);
AttentionBackward padded(const AttentionBackward& a, char* memory, Queue& queue);

// Copies the results of the op on copies to the tensors of `a`.
void take_results(const AttentionForward& copies, const AttentionForward& a, Queue& queue);
void take_results(const AttentionBackward& copies, const AttentionBackward& a, Queue& queue);

}  // namespace kernels
