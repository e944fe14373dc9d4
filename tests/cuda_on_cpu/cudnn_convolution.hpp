// SPDX-License-Identifier: Apache-2.0
// One convolution of the emulated cuDNN.
#pragma once

#include "cudnn_tensor.hpp"

namespace cuda_on_cpu {

// The engines of the emulated cuDNN, in the order of its proposals.
enum class DnnEngine : int64_t {
  unordered,    // adds in another order in each call
  tensor_core,  // rounds f32 operands to tf32
  plain
};

struct DnnConvolution {
  cudnnBackendDescriptorType_t operation{};
  DnnTensor x, w, y;
  int64_t strides[2] = {}, padding[2] = {};
  float alpha = 1, beta = 0;
  bool keeps_floats = false;  // a second operation copies the result to an f32 tensor
  DnnEngine engine = DnnEngine::plain;

  // True if the shapes and layouts fit each other.
  bool is_valid() const;
  // True if the library has plans: tensors of one type, or a sum that stays f32 in a second
  // operation, for channels in multiples of 8. With CUDNN_ON_CPU_REFUSE=floats it has none of the
  // latter.
  bool has_plans();
  DnnTensor& result();
  // True if all data are there and aligned as described.
  bool has_data() const;
  void run();
};

}  // namespace cuda_on_cpu
