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
  // True if the library has plans. It has plans for tensors of one type. For channels in multiples
  // of 8 it also has plans that keep the sum in f32 by a second operation, unless
  // CUDNN_ON_CPU_REFUSE has "floats".
  bool has_plans();
  DnnTensor& result();
  // True if all tensors have addresses, aligned as described.
  bool has_data() const;
  void run();
};

}  // namespace cuda_on_cpu
