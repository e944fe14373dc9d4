// SPDX-License-Identifier: Apache-2.0
// Graphs of attention of the emulated cuDNN: products of matrices, operations on elements, sums and
// maxima of rows, and reshapes.
#pragma once

#include <map>
#include <vector>

#include "cudnn_tensor.hpp"

namespace cuda_on_cpu {

struct DnnOperation {
  cudnnBackendDescriptorType_t type{};
  int mode = 0;       // of operations on elements, and of reductions
  int64_t axis = -1;  // of numbers of rows and columns
  DnnTensor x, b, t, y;
  bool has_b = false, has_t = false;
};

struct DnnAttention {
  std::vector<DnnOperation> operations;

  // True if the shapes of all operations fit, and each one reads tensors that are given or already
  // computed.
  bool is_valid() const;
  bool is_backward() const;
  // True if the library has a plan: heads of at most 128 numbers, in multiples of 8. With
  // CUDNN_ON_CPU_REFUSE=attention it has none.
  bool has_plans() const;
  // Backward stores the gradients of the scores, as on H100 and H200.
  int64_t workspace_bytes() const;
  // Sets the addresses of tensors in memory. Returns false if an address is missing or not aligned.
  bool place(const std::map<int64_t, void*>& data);
  void run() const;

 private:
  // All tensors that are not virtual.
  std::vector<DnnTensor*> in_memory();
};

}  // namespace cuda_on_cpu
