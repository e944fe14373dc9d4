// SPDX-License-Identifier: Apache-2.0
// Attention of bf16 and f16 tensors by cuDNN's fused kernels. It serves all masks and packed rows,
// but no dropout. Backward uses cuDNN's deterministic form.
#pragma once

#include <string>

#include "kernels/attention.hpp"

namespace kernels {

// Runs the op. Returns false if cuDNN has no kernel for it, so that our own kernels must run. That
// counts as a fallback if is_for_cudnn is true.
bool attention_by_cudnn(const AttentionForward& a, Queue& queue);
bool attention_by_cudnn(const AttentionBackward& a, Queue& queue);

// True if cuDNN may have a kernel for such tensors.
bool is_for_cudnn(const AttentionShape& shape, DType type);
// Places within the scratch of a call: cuDNN's workspace comes first, then one float for each query
// and head, then the keys that each query sees, then copies of packed tensors.
struct CudnnScratch {
  CudnnScratch(const AttentionShape& shape, int64_t workspace, int64_t padded_bytes);
  int64_t sums, seen, copies, bytes;  // offsets in bytes; size of all
};

// Returns cuDNN's reason to make no plan for the device that `device` describes (JSON), or "" if it
// makes one. Serves tests without a GPU.
std::string cudnn_plan_problem(const AttentionShape& shape, DType type, bool backward,
                               const std::string& device);

}  // namespace kernels
