// SPDX-License-Identifier: Apache-2.0
// The largest absolute value of the gradient of each tensor, for clipping by the infinity norm.
// Ranks exchange only sums, so each rank has its own place for each tensor in a table of zeros.
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

  // Finds the values of the gradients that `gradient` returns for owned parts of tensors. A
  // gradient that is none is left out. One all-reduce over mesh.fsdp.
  void find(const std::function<device::View(const Piece&)>& gradient);
  // f64 [any], at least 0: the largest of them is the norm of all gradients.
  device::View all() const { return table_.view(device::DType::f64).slice(0, tensors_ * ranks_); }

 private:
  shard::Fabric fabric_;
  int64_t tensors_, ranks_;
  std::vector<Piece> parts_;  // that this rank owns, at most one per tensor
  device::Buffer table_;
  kernels::OpList<kernels::MaxAbs> list_;
};

}  // namespace optim
