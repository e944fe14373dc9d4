// SPDX-License-Identifier: Apache-2.0
// Computes attention in double, with every score in memory.
#pragma once

#include "kernels/attention.hpp"
#include "rig.hpp"

namespace rig {

struct AttentionReference {
  kernels::AttentionShape shape;
  std::vector<uint8_t> flags;
  std::vector<double> q, k, v, d_o;
  std::vector<double> o, lse, dq, dk, dv;

  int64_t at(int64_t b, int64_t i, int64_t h, int64_t d, int64_t length) const {
    return ((b * length + i) * shape.heads + h) * shape.head_dim + d;
  }
  bool sees(int64_t b, int64_t i, int64_t j) const {
    bool causal = shape.mask == kernels::Mask::causal ||
                  (shape.mask == kernels::Mask::per_example && flags[size_t(b)] != 0);
    return !causal || j <= i;
  }
  double kept(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (shape.dropout == 0) return 1;
    int64_t draw = (((shape.first_example + b) * shape.heads + h) * shape.query_length + i) *
                       shape.key_length +
                   j;
    return shape.stream.uniform(uint64_t(draw)) >= shape.dropout ? 1 / (1 - double(shape.dropout))
                                                                 : 0;
  }
  // Returns the softmax weights of one query, before dropout.
  std::vector<double> weights(int64_t b, int64_t h, int64_t i, double* log_sum) const {
    std::vector<double> s(static_cast<size_t>(shape.key_length));
    double largest = -1e300, sum = 0;
    for (int64_t j = 0; j < shape.key_length; ++j) {
      double dot = 0;
      for (int64_t d = 0; d < shape.head_dim; ++d)
        dot += q[size_t(at(b, i, h, d, shape.query_length))] *
               k[size_t(at(b, j, h, d, shape.key_length))];
      s[size_t(j)] =
          sees(b, i, j) ? dot / std::sqrt(double(shape.head_dim)) : -3.4028234663852886e38;
      largest = std::max(largest, s[size_t(j)]);
    }
    for (double& x : s) {
      x = std::exp(x - largest);
      sum += x;
    }
    for (double& x : s) x /= sum;
    if (log_sum) *log_sum = largest + std::log(sum);
    return s;
  }

  void forward() {
    const auto& s = shape;
    o.assign(q.size(), 0);
    lse.assign(size_t(s.batch * s.heads * s.query_length), 0);
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t h = 0; h < s.heads; ++h)
        for (int64_t i = 0; i < s.query_length; ++i) {
          auto p = weights(b, h, i, &lse[size_t((b * s.heads + h) * s.query_length + i)]);
          for (int64_t j = 0; j < s.key_length; ++j)
            for (int64_t d = 0; d < s.head_dim; ++d)
              o[size_t(at(b, i, h, d, s.query_length))] +=
                  p[size_t(j)] * kept(b, h, i, j) * v[size_t(at(b, j, h, d, s.key_length))];
        }
  }
  void backward() {
    const auto& s = shape;
    dq.assign(q.size(), 0);
    dk.assign(k.size(), 0);
    dv.assign(v.size(), 0);
    double root = std::sqrt(double(s.head_dim));
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t h = 0; h < s.heads; ++h)
        for (int64_t i = 0; i < s.query_length; ++i) {
          auto p = weights(b, h, i, nullptr);
          std::vector<double> dp(p.size());
          double mean = 0;
          for (int64_t j = 0; j < s.key_length; ++j) {
            double f = kept(b, h, i, j);
            for (int64_t d = 0; d < s.head_dim; ++d) {
              double g = d_o[size_t(at(b, i, h, d, s.query_length))];
              dp[size_t(j)] += f * g * v[size_t(at(b, j, h, d, s.key_length))];
              dv[size_t(at(b, j, h, d, s.key_length))] += p[size_t(j)] * f * g;
            }
            mean += p[size_t(j)] * dp[size_t(j)];
          }
          for (int64_t j = 0; j < s.key_length; ++j) {
            double ds = p[size_t(j)] * (dp[size_t(j)] - mean) / root;
            for (int64_t d = 0; d < s.head_dim; ++d) {
              int64_t iq = at(b, i, h, d, s.query_length), ik = at(b, j, h, d, s.key_length);
              dq[size_t(iq)] += ds * k[size_t(ik)];
              dk[size_t(ik)] += ds * q[size_t(iq)];
            }
          }
        }
  }
  double loss() {
    forward();
    double sum = 0;
    for (size_t i = 0; i < o.size(); ++i) sum += o[i] * d_o[i];
    return sum;
  }
};

}  // namespace rig
