// SPDX-License-Identifier: Apache-2.0
// Ops of determinism.level "anywhere": their bits are the same on every CPU. Level "mesh" uses
// products where they are faster than the library's.
#pragma once

#include "kernels/convolution.hpp"
#include "kernels/gemm.hpp"
#include "kernels/instruction_choice.hpp"

namespace kernels {

// Product of at least one k, without `sums`. Operands may be bf16, which is widened.
void run_portable(const Gemm& a, Queue& queue);
// True if our product is faster than oneDNN's on this CPU, so that level "mesh" uses it. With
// oneDNN 2.6 on AVX2, blocks of a fixed order fall from 90 to 35 GFLOP/s a thread if lines of b are
// whole pages apart: its columns meet in the same places of the cache. Layers 1024, 3072 or 4096
// wide have such weights. A single row is faster in the library, unless rows must be alike.
bool portable_is_faster(const Gemm& a, const Queue& queue);
// Calls and seconds of the calling thread's products (gemm_uses).
std::vector<GemmUse> portable_gemm_uses();
void reset_portable_gemm_uses();

void run_portable(const ConvolutionForward& a, Queue& queue);
void run_portable(const ConvolutionBackwardData& a, Queue& queue);
void run_portable(const ConvolutionBackwardWeights& a, Queue& queue);

}  // namespace kernels
