// SPDX-License-Identifier: Apache-2.0
// The ratio of norms by which LARC and LARS scale the gradient of each tensor (ssl.md 4). The norms
// are of whole tensors, so their sums of squares are formed piece by piece and added first.
#pragma once

#include "base/fused.hpp"
#include "kernels/apply_update.hpp"
#include "kernels/check_views.hpp"

namespace kernels {

// sums = the sum of weight^2 and the sum of (g + decay * weight)^2, where g is the clipped
// gradient. The second sum is 0 if the step is not applied.
struct TrustSums {
  static constexpr Op op = Op::trust_sums;
  View sums;               // f64 [2]
  View weights, gradient;  // f32 [count]
  Clip clip{};
  float decay = 0;
};
size_t cuda_scratch(const TrustSums&);

enum class Trust {
  larc,  // coefficient * |w| / (|g| + decay * |w| + eps); no decay without a ratio
  lars   // coefficient * |w| / |g + decay * w|
};

// trust = ratio and decay for InnerDecay::trust. If one of the norms is 0, the ratio is 1.
struct TrustRatio {
  static constexpr Op op = Op::trust_ratio;
  View trust{};  // f32 [2]
  View sums{};   // f64 [2] of trust_sums, over the whole tensor; larc: formed with decay 0
  Trust rule = Trust::larc;
  float coefficient = 0, eps = 0;
  float decay = 0;
  float limit = 0;  // larc, if above 0: the rate; the ratio is then min(ratio / rate, 1)
};

struct TrustNumbers {
  float ratio, decay;
};
// Returns the ratio and the decay for two norms; both back ends call it.
constexpr TrustNumbers trust_of(Trust rule, double weights, double gradient, double coefficient,
                                double eps, float decay, double limit) {
  const bool scales = weights > 0 && gradient > 0;
  if (rule == Trust::lars) return {scales ? float(coefficient * weights / gradient) : 1.0f, decay};
  if (!scales) return {1, 0};
  double ratio = coefficient * weights / (base::fused(double(decay), weights, gradient) + eps);
  if (limit > 0) ratio = ratio < limit ? ratio / limit : 1;
  return {float(ratio), decay};
}

inline void check(const TrustSums& a) {
  check(a.clip);
  need_view(a.op, "sums", a.sums, DType::f64, {2});
  need_view(a.op, "weights", a.weights, DType::f32, {a.weights.count});
  need_view(a.op, "gradient", a.gradient, DType::f32, {a.weights.count});
}

inline Cost cost(const TrustSums& a) { return {6 * a.weights.count, 8 * a.weights.count}; }

inline void check(const TrustRatio& a) {
  need_view(a.op, "trust", a.trust, DType::f32, {2});
  need_view(a.op, "sums", a.sums, DType::f64, {2});
}

inline Cost cost(const TrustRatio&) { return {6, 24}; }

}  // namespace kernels
