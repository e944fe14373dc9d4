// SPDX-License-Identifier: Apache-2.0
// The largest absolute value of the gradient of each tensor, for clipping by the infinity norm.
// Ranks exchange by sums only, so each one has a place for each tensor in a table of zeros.
#pragma once

#include <functional>
#include <vector>

#include "kernels/max_abs.hpp"
#include "kernels/square_sums.hpp"
#include "optim/method.hpp"

namespace optim {

class InfinityNorms {
 public:
  explicit InfinityNorms(const shard::Fabric& fabric);

  // Finds the values of all gradients that `gradient` returns, by owned part of a tensor; none:
  // left out. One all-reduce over mesh.fsdp.
  void find(const std::function<device::View(const Piece&)>& gradient);
  // f64 [any], at least 0: the largest of them is the norm of all gradients.
  device::View all() const { return table_.view(device::DType::f64).slice(0, tensors_ * ranks_); }

 private:
  shard::Fabric fabric_;
  int64_t tensors_, ranks_;
  std::vector<Piece> parts_;  // that this rank owns, one of a tensor at most
  device::Buffer table_;
  kernels::OpList<kernels::MaxAbs> list_;
};

}  // namespace optim
