// SPDX-License-Identifier: Apache-2.0
// Several layers of the same rows as one product, on GPUs. Each layer keeps its own kernel,
// whatever ranks hold it. A product reads a copy with the columns of all kernels side by side.
#pragma once

#include "nn/layers.hpp"

namespace nn {

class JoinedLinear {
 public:
  // Two or three layers with the same number of inputs.
  JoinedLinear(std::initializer_list<const Linear*> layers);
  int64_t columns() const { return columns_; }  // outputs of all layers

  // Returns the part of a matrix [rows, columns()] that belongs to layer i. Its rows are columns()
  // elements apart.
  View part(View matrix, int64_t rows, size_t i) const;

  // y [rows, columns()] = x . kernels + biases. x is an operand (Context::operand).
  void forward(Context& ctx, View x, int64_t rows, View y) const;
  // dx = (+=) the sum over the layers of their part of d times their transposed kernel.
  void backward_input(Context& ctx, View d, int64_t rows, View dx, Write write) const;
  // Computes the gradients of kernels and biases from d, an operand.
  void parameter_gradients(Context& ctx, View d, View x, int64_t rows) const;

 private:
  bool has_gradient(const Context& ctx, int Linear::*parameter) const;
  bool has_biases() const { return layers_[0]->bias >= 0; }
  View joined_kernels(Context& ctx) const;

  std::array<const Linear*, 3> layers_{};
  size_t count_ = 0;
  int64_t inputs_ = 0, columns_ = 0;
};

}  // namespace nn
