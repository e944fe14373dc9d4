// SPDX-License-Identifier: Apache-2.0
// Lists the ops of a CapPa training step on one GPU, with shapes and calls per step, for
// kernel_table.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "device/memory.hpp"
#include "kernels/dispatch.hpp"

namespace gpu_check {

struct Model {
  std::string name;
  int64_t batch, tokens, text, width, mlp, heads, encoder, decoder, vocabulary, side, patch;
};
Model b16(), l14();
Model tiny();  // small enough for CPUs

// Memory for the ops of one row, filled with seeded numbers.
class Memory {
 public:
  explicit Memory(device::Queue& queue) : queue_(queue) {}
  device::View normals(int64_t count, device::DType type);  // standard deviation 0.5
  device::View filled(int64_t count, float value);          // f32
  device::View zeros(int64_t count, device::DType type);
  device::View integers(const std::vector<int32_t>& values);
  bool on_gpu() const { return queue_.device() == device::Kind::cuda; }

 private:
  device::View make(int64_t count, device::DType type);
  // repeats the first `known` elements over all
  void spread(const device::View& all, int64_t known);
  device::Queue& queue_;
  device::Ledger ledger_;
  std::vector<device::Buffer> buffers_;
};

struct Row {
  std::string op, shape;
  double per_step;  // calls in one training step; 0: printed but not added
  // Makes the operands and returns the call.
  std::function<std::function<void()>(Memory&, device::Queue&)> prepare;
  kernels::Cost cost;
};

// Activations are bf16 where the ops allow it. Master weights and gradients are f32.
std::vector<Row> rows_of(const Model& model);

}  // namespace gpu_check
