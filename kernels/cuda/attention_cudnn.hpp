// SPDX-License-Identifier: Apache-2.0
// Attention of bf16 and f16 tensors by cuDNN's fused kernels. It serves full, causal and
// per-example masks, but neither packed rows nor dropout. Backward uses cuDNN's deterministic form.
#pragma once

#include <string>

#include "kernels/attention.hpp"

namespace kernels {

// Runs the op. Returns false if cuDNN has no kernel for it, so that our own kernels must run. Logs
// a warning in that case if is_for_cudnn is true.
bool attention_by_cudnn(const AttentionForward& a, Queue& queue);
bool attention_by_cudnn(const AttentionBackward& a, Queue& queue);

// True if cuDNN may have a kernel for such tensors.
bool is_for_cudnn(const AttentionShape& shape, DType type);
// Places within the scratch of a call: cuDNN's workspace comes first, then one float for each query
// and head, then the shifts of masks.
struct CudnnScratch {
  CudnnScratch(const AttentionShape& shape, int64_t workspace);
  int64_t sums, shifts, bytes;  // offsets in bytes; size of all
};

// Returns cuDNN's reason to make no plan for the device that `device` describes (JSON), or "" if it
// makes one. Serves tests without a GPU.
std::string cudnn_plan_problem(const AttentionShape& shape, DType type, bool backward,
                               const std::string& device);

// Writes the shifts of per-example masks, i32 [batch]: out[b] = 0 if example b is causal, else
// key_length. A query sees the keys up to its own number plus the shift.
void mask_shifts(int32_t* out, const AttentionShape& shape, Queue& queue);

}  // namespace kernels
