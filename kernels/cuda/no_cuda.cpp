// SPDX-License-Identifier: Apache-2.0
// Stubs of all CUDA ops, for builds without CUDA (TRAINER_CUDA=OFF). They never run, because such a
// build makes no CUDA queue. The stubs come from ops.def and need no header of an op, so a new op
// has its stub as soon as it has its line there.
#include "kernels/convolution.hpp"
#include "kernels/gemm_search.hpp"

namespace kernels {

// The name of an op is its line in ops.def, because its struct is incomplete here.
#define OP(name, Args, group)                                               \
  void run_cuda(const Args&, Queue&) {                                      \
    CHECK(false, "{}: this build has no CUDA back end", name_of(Op::name)); \
  }
#define OP_TOGETHER(name, Args, group)                                      \
  void run_cuda(std::span<const Args>, Queue&) {                            \
    CHECK(false, "{}: this build has no CUDA back end", name_of(Op::name)); \
  }
#include "kernels/ops.def"
#undef OP

void prepare_cuda(const Gemm&, const Queue&) {}
void prepare_cuda(const ConvolutionForward&, const Queue&) {}
void prepare_cuda(const ConvolutionBackwardData&, const Queue&) {}
void prepare_cuda(const ConvolutionBackwardWeights&, const Queue&) {}
bool sums_pay(const Gemm&, const Queue&) { return false; }
std::string gemm_platform() { return "no GPU"; }
GemmSearch search_gemms(const std::string&, Queue&) { return {}; }
void use_gemm_choices(const std::string&) {}

}  // namespace kernels
