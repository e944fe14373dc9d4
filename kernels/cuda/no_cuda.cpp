// SPDX-License-Identifier: Apache-2.0
// Stubs of all CUDA ops, for builds without CUDA (TRAINER_CUDA=OFF). They never run, because such a
// build makes no CUDA queue.
#include "kernels/adafactor.hpp"
#include "kernels/adamw_update.hpp"
#include "kernels/add_noise.hpp"
#include "kernels/apply_update.hpp"
#include "kernels/attention.hpp"
#include "kernels/average_pool.hpp"
#include "kernels/batch_norm.hpp"
#include "kernels/cast.hpp"
#include "kernels/class_xent.hpp"
#include "kernels/clip_gradient.hpp"
#include "kernels/convolution.hpp"
#include "kernels/decode_attention.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/ema_update.hpp"
#include "kernels/embedding.hpp"
#include "kernels/gelu.hpp"
#include "kernels/gemm.hpp"
#include "kernels/gemm_search.hpp"
#include "kernels/layer_norm.hpp"
#include "kernels/lion_update.hpp"
#include "kernels/loss_scale.hpp"
#include "kernels/loss_sums.hpp"
#include "kernels/max_abs.hpp"
#include "kernels/max_pool.hpp"
#include "kernels/mix_images.hpp"
#include "kernels/momentum_update.hpp"
#include "kernels/patchify.hpp"
#include "kernels/row_product.hpp"
#include "kernels/scale_pixels.hpp"
#include "kernels/softmax_xent.hpp"
#include "kernels/square_sums.hpp"
#include "kernels/target_counts.hpp"
#include "kernels/target_xent.hpp"
#include "kernels/token_mean.hpp"
#include "kernels/trust.hpp"
#include "kernels/unit_rows.hpp"

namespace kernels {

#define OP(name, Args, group)                                              \
  void run_cuda(const Args& args, Queue&) {                                \
    CHECK(false, "{}: this build has no CUDA back end", name_of(args.op)); \
  }
#define OP_TOGETHER(name, Args, group)                                      \
  void run_cuda(std::span<const Args>, Queue&) {                            \
    CHECK(false, "{}: this build has no CUDA back end", name_of(Args::op)); \
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
