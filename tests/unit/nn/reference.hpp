// SPDX-License-Identifier: Apache-2.0
// Computes naive layers in double, from the text of the specification (cappa.md 1.3).
#pragma once

#include <algorithm>

#include "rig.hpp"

namespace reference {

using rig::Doubles;

inline Doubles linear(const Doubles& x, const Doubles& kernel, const Doubles* bias, int64_t in,
                      int64_t out) {
  int64_t rows = int64_t(x.size()) / in;
  Doubles y(size_t(rows * out));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t o = 0; o < out; ++o) {
      double sum = bias ? (*bias)[size_t(o)] : 0;
      for (int64_t i = 0; i < in; ++i) sum += x[size_t(r * in + i)] * kernel[size_t(i * out + o)];
      y[size_t(r * out + o)] = sum;
    }
  return y;
}

inline Doubles layer_norm(const Doubles& x, const Doubles& scale, const Doubles* bias,
                          int64_t width, double epsilon = 1e-6) {
  Doubles y(x.size());
  for (size_t r = 0; r < x.size(); r += size_t(width)) {
    double mean = 0, variance = 0;
    for (size_t i = 0; i < size_t(width); ++i) mean += x[r + i] / double(width);
    for (size_t i = 0; i < size_t(width); ++i)
      variance += (x[r + i] - mean) * (x[r + i] - mean) / double(width);
    for (size_t i = 0; i < size_t(width); ++i)
      y[r + i] =
          (x[r + i] - mean) / std::sqrt(variance + epsilon) * scale[i] + (bias ? (*bias)[i] : 0);
  }
  return y;
}

inline Doubles gelu(Doubles x) {
  for (double& v : x)
    v = 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
  return x;
}

inline Doubles gelu_erf(Doubles x) {
  for (double& v : x) v = 0.5 * v * (1 + std::erf(v / std::sqrt(2.0)));
  return x;
}

inline Doubles gelu_quick(Doubles x) {
  for (double& v : x) v = v / (1 + std::exp(-1.702 * v));
  return x;
}

// Divides kept values by (1 - rate). `first` is the draw index of element 0.
inline Doubles dropout(Doubles x, float rate, base::Stream stream, int64_t first) {
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = stream.uniform(uint64_t(first) + i) >= rate ? x[i] / (1 - double(rate)) : 0;
  return x;
}

inline base::Stream stream_of(const char* name, int layer) {
  return rig::World::dropout_stream().sub(base::stream_id(name)).sub(uint64_t(layer));
}

struct Heads {
  int64_t batch, heads, query_length, key_length, head_dim;
  // by position in `batch`
  std::function<bool(int64_t example)> causal = [](int64_t) { return false; };
  float rate = 0;
  base::Stream stream{};
  int64_t first_example = 0;
};

// Shapes: q and result [batch, query_length, heads, head_dim]; k and v [batch, key_length, heads,
// head_dim].
inline Doubles attend(const Doubles& q, const Doubles& k, const Doubles& v, const Heads& s) {
  Doubles o(q.size(), 0);
  auto row = [&](int64_t b, int64_t length, int64_t i, int64_t h) {
    return size_t(((b * length + i) * s.heads + h) * s.head_dim);
  };
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.heads; ++h)
      for (int64_t i = 0; i < s.query_length; ++i) {
        Doubles p;
        double most = -1e300, sum = 0;
        for (int64_t j = 0; j < s.key_length; ++j) {
          double score = 0;
          for (int64_t d = 0; d < s.head_dim; ++d)
            score += q[row(b, s.query_length, i, h) + size_t(d)] / std::sqrt(double(s.head_dim)) *
                     k[row(b, s.key_length, j, h) + size_t(d)];
          if (s.causal(b) && j > i) score = -3.4028234663852886e38;
          p.push_back(score);
          most = std::max(most, score);
        }
        for (double& x : p) {
          x = std::exp(x - most);
          sum += x;
        }
        for (int64_t j = 0; j < s.key_length; ++j) {
          int64_t draw =
              (((s.first_example + b) * s.heads + h) * s.query_length + i) * s.key_length + j;
          double weight = p[size_t(j)] / sum;
          if (s.rate > 0)
            weight = s.stream.uniform(uint64_t(draw)) >= s.rate ? weight / (1 - double(s.rate)) : 0;
          for (int64_t d = 0; d < s.head_dim; ++d)
            o[row(b, s.query_length, i, h) + size_t(d)] +=
                weight * v[row(b, s.key_length, j, h) + size_t(d)];
        }
      }
  return o;
}

}  // namespace reference
