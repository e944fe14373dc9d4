// SPDX-License-Identifier: Apache-2.0
// A tensor of the emulated cuDNN.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "cudnn.h"
#include "kernels/bf16_value.hpp"
#include "kernels/f16_value.hpp"

namespace cuda_on_cpu {

// True if the list CUDNN_ON_CPU_REFUSE has this name. Then no plans for it exist.
inline bool dnn_refuses(const std::string& what) {
  const char* set = std::getenv("CUDNN_ON_CPU_REFUSE");
  return set && ("," + std::string(set) + ",").find("," + what + ",") != std::string::npos;
}

struct DnnTensor {
  int64_t id = 0, alignment = 1;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  std::array<int64_t, 4> sizes{}, strides{};
  bool is_virtual = false;   // never in memory
  bool is_by_value = false;  // one number, which the call copies
  float value = 0;           // of such a tensor
  void* data = nullptr;

  bool has_data() const {
    return data && reinterpret_cast<uintptr_t>(data) % uintptr_t(alignment) == 0;
  }
  bool is_in_memory() const { return data && !is_virtual && !is_by_value; }
  size_t element_bytes() const {
    return type == CUDNN_DATA_HALF || type == CUDNN_DATA_BFLOAT16 ? 2 : 4;
  }
  float read(int64_t i) const {
    if (is_by_value) return value;
    if (type == CUDNN_DATA_FLOAT) return static_cast<const float*>(data)[i];
    if (type == CUDNN_DATA_INT32) return float(static_cast<const int32_t*>(data)[i]);
    const uint16_t bits = static_cast<const uint16_t*>(data)[i];
    return type == CUDNN_DATA_HALF ? to_float(kernels::loops::F16{bits})
                                   : to_float(kernels::loops::Bf16{bits});
  }
  void write(int64_t i, float x) const {
    if (type == CUDNN_DATA_FLOAT)
      static_cast<float*>(data)[i] = x;
    else
      static_cast<uint16_t*>(data)[i] = type == CUDNN_DATA_HALF
                                            ? kernels::loops::round_to_f16(x).bits
                                            : kernels::loops::round_to_bf16(x).bits;
  }
};

}  // namespace cuda_on_cpu
