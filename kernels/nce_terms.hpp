// SPDX-License-Identifier: Apache-2.0
// Noise-contrastive estimation of rows whose column 0 is the positive one (ssl.md 3.7).
#pragma once

#include "kernels/dispatch.hpp"

namespace kernels {

struct NceTotals {  // total = sum of exp(logits)
  static constexpr Op op = Op::nce_totals;
  View total;   // f64 [1]
  View logits;  // f32 [rows, columns]
  int64_t rows = 0, columns = 0;
};
size_t cuda_scratch(const NceTotals&);

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

}  // namespace kernels
