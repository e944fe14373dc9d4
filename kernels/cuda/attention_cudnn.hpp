// Attention of bf16 and f16 tensors by cuDNN's fused kernels, where it has them: full, causal and per-example masks, rows not packed, no
// dropout. Backward is its deterministic form.
#pragma once

#include <string>

#include "kernels/attention.hpp"

namespace kernels {

// Runs it, or returns false where our own kernels must: cuDNN has none for this (a warning says so if it might have had one).
bool attention_by_cudnn(const AttentionForward& a, Queue& queue);
bool attention_by_cudnn(const AttentionBackward& a, Queue& queue);

// Whether cuDNN is asked at all.
bool is_for_cudnn(const AttentionShape& shape, DType type);
// Scratch of a call: cuDNN's workspace, one float for each query and head, and the masks' shifts.
struct CudnnScratch {
  CudnnScratch(const AttentionShape& shape, int64_t workspace);
  int64_t sums, shifts, bytes;  // where they begin
};

// For tests without a GPU: why cuDNN makes no plan for a device that `device` describes (JSON), or empty where it does.
std::string cudnn_plan_problem(const AttentionShape& shape, DType type, bool backward, const std::string& device);

// out[b] = 0 where example b is causal, else `length`: a query sees the keys up to its own number plus this. i32 [batch].
void mask_shifts(int32_t* out, const AttentionShape& shape, Queue& queue);

}  // namespace kernels
