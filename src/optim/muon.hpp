// SPDX-License-Identifier: Apache-2.0
// Muon: momentum whose direction is made orthogonal, for matrices within a network (K. Jordan,
// https://kellerjordan.github.io/posts/muon, as PyTorch's torch.optim.Muon). With a gradient G:
//   M = momentum M + G,  D = G + momentum M (nesterov) or M
//   X = D / |D|,  then `steps` times:  A = X X^T,  X = 3.4445 X - 4.775 A X + 2.0315 A A X
//   direction = scale X
// The steps bring all singular values of X near 1.
#pragma once

#include "optim/method.hpp"

namespace optim {

struct MuonOptions : MethodOptions {
  // The scale of a direction from `in` to `out` numbers: sqrt(max(1, out/in)), as published;
  // 0.2 sqrt(max(in, out)), which gives updates the size of AdamW's (arXiv 2502.16982); or 1.
  enum class Scaling { original, match_adamw, none };

  double momentum = 0.95;
  bool nesterov = true;
  int64_t steps = 5;
  Scaling scaling = Scaling::original;
  device::DType momentum_type = device::DType::f32;

  void bind(config::Table& t) override;
  int64_t element_state_bytes(const std::vector<int64_t>&) const override {
    return size_of(momentum_type);
  }
  bool reads_gradients_once() const override { return false; }
  std::string problem(const shard::Parameter& parameter) const override;
  std::unique_ptr<Method> make(const shard::Fabric& fabric, const Chosen& chosen) const override;
};

// A tensor as the matrix that a product multiplies with.
struct MatrixShape {
  int64_t rows = 1, columns = 1;
  int64_t in = 1, out = 1;  // one of them is rows, the other one columns
};
// Axes of inputs and outputs are joined where the tensor's fans say so: [width, heads, head width]
// is a matrix of width x heads * head width. Without fans the last axis is the output.
MatrixShape matrix_shape(const shard::Parameter& parameter);

}  // namespace optim
