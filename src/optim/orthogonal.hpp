// SPDX-License-Identifier: Apache-2.0
// Newton-Schulz steps: they replace a matrix by one near the closest orthogonal matrix, with
// products alone.
#pragma once

#include "device/memory.hpp"
#include "device/queue.hpp"

namespace optim {

class NewtonSchulz {
 public:
  // Makes memory for matrices of at most so many elements, whose shorter side has at most `side`.
  NewtonSchulz(device::Kind kind, device::Ledger& ledger, int64_t elements, int64_t side);

  // Replaces x, f32 [rows, columns], by a matrix that `factor(steps)` times is orthogonal, nearly.
  // A matrix of zeros stays as it is.
  void run(device::View x, int64_t rows, int64_t columns, int64_t steps,
           device::Queue& queue) const;
  // The factor that the steps leave to the caller: one less pass over x in each step.
  static double factor(int64_t steps);

 private:
  device::Buffer product_, square_, fourth_;
};

}  // namespace optim
