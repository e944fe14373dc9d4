// SPDX-License-Identifier: Apache-2.0
// Attention of bf16 and f16 tensors by cuDNN's fused kernels: full, causal and per-example masks,
// rows that are not packed, no dropout. Backward is its deterministic form.
#pragma once

#include <string>

#include "kernels/attention.hpp"

namespace kernels {

// Runs the op. Returns false if cuDNN has no kernel for it, so that our own kernels must run; a
// warning is logged if is_for_cudnn.
bool attention_by_cudnn(const AttentionForward& a, Queue& queue);
bool attention_by_cudnn(const AttentionBackward& a, Queue& queue);

// Returns true if cuDNN may have a kernel for such tensors.
bool is_for_cudnn(const AttentionShape& shape, DType type);
// Scratch of a call: cuDNN's workspace, one float for each query and head, and the shifts of masks.
struct CudnnScratch {
  CudnnScratch(const AttentionShape& shape, int64_t workspace);
  int64_t sums, shifts, bytes;  // where they begin
};

// For tests without a GPU: returns cuDNN's reason to make no plan for the device that `device`
// describes (JSON), or "" if it makes one.
std::string cudnn_plan_problem(const AttentionShape& shape, DType type, bool backward,
                               const std::string& device);

// out[b] = 0 where example b is causal, else `length`: a query sees the keys up to its own number
// plus this. i32 [batch].
void mask_shifts(int32_t* out, const AttentionShape& shape, Queue& queue);

}  // namespace kernels
