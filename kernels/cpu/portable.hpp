// SPDX-License-Identifier: Apache-2.0
// Ops of determinism.level "anywhere": their bits are the same on every CPU.
#pragma once

#include "kernels/convolution.hpp"
#include "kernels/gemm.hpp"
#include "kernels/instruction_choice.hpp"

namespace kernels {

// Product of at least one k, without `sums`. Operands may be bf16, which is widened.
void run_portable(const Gemm& a, Queue& queue);
// Calls and seconds of the calling thread's products (gemm_uses).
std::vector<GemmUse> portable_gemm_uses();
void reset_portable_gemm_uses();

void run_portable(const ConvolutionForward& a, Queue& queue);
void run_portable(const ConvolutionBackwardData& a, Queue& queue);
void run_portable(const ConvolutionBackwardWeights& a, Queue& queue);

}  // namespace kernels
