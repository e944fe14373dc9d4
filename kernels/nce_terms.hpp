// SPDX-License-Identifier: Apache-2.0
// Noise-contrastive estimation of rows whose column 0 is the positive one (ssl.md 3.7).
#pragma once

#include "kernels/check_views.hpp"

namespace kernels {

struct NceTotals {  // total = sum of exp(logits)
  static constexpr Op op = Op::nce_totals;
  View total;   // f64 [1]
  View logits;  // f32 [rows, columns]
  int64_t rows = 0, columns = 0;
};

// A constant below 0 becomes total / count * samples; any other one stays.
struct NceConstant {
  static constexpr Op op = Op::nce_constant;
  View constant;  // f32 [1]
  View total;     // f64 [1]
  double count = 1, samples = 1;
};

enum class NceKind { nce, softmax };

// nce: with x = exp(logits) / constant, P = 1 / samples, K = columns - 1, c = K P + kNceLeast,
//   loss[r] = -log(x_0 / (x_0 + c)) - sum over k > 0 of log(K P / (x_k + c)).
// softmax: loss[r] = -log softmax(logits[r])_0.
// loss is multiplied by `factor`, and logits become `scale` times its derivative.
struct NceTerms {
  static constexpr Op op = Op::nce_terms;
  static constexpr double kNceLeast = 1.1920928955078125e-07;

  View logits;        // f32 [rows, columns], in and out
  View loss;          // f32 [rows]
  View constant{};    // f32 [1], for nce
  View loss_scale{};  // optional f32 [1]: another factor of the gradient
  int64_t rows = 0, columns = 0;
  double samples = 1;
  NceKind kind = NceKind::nce;
  float factor = 1, scale = 1;
  Write loss_write = Write::overwrite;
};

inline void check(const NceTotals& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "columns", a.columns, 1);
  need_view(a.op, "total", a.total, DType::f64, {1});
  need_view(a.op, "logits", a.logits, DType::f32, {a.rows, a.columns});
}
inline Cost cost(const NceTotals& a) { return {2 * a.logits.count, a.logits.bytes()}; }
inline size_t cuda_scratch(const NceTotals& a) { return size_t(a.rows) * sizeof(double); }

inline void check(const NceConstant& a) {
  need_view(a.op, "constant", a.constant, DType::f32, {1});
  need_view(a.op, "total", a.total, DType::f64, {1});
  CHECK(a.count > 0 && a.samples > 0, "{}: {} values of {} samples", name_of(a.op), a.count,
        a.samples);
}
inline Cost cost(const NceConstant&) { return {2, 16}; }

inline void check(const NceTerms& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "columns", a.columns, 2);
  need_view(a.op, "logits", a.logits, DType::f32, {a.rows, a.columns});
  need_view(a.op, "loss", a.loss, DType::f32, {a.rows});
  if (a.kind == NceKind::nce) need_view(a.op, "constant", a.constant, DType::f32, {1});
  allow_view(a.op, "loss_scale", a.loss_scale, DType::f32, {1});
  CHECK(a.samples > 0, "{}: {} samples", name_of(a.op), a.samples);
}
inline Cost cost(const NceTerms& a) { return {8 * a.logits.count, 2 * a.logits.bytes()}; }

}  // namespace kernels
