// SPDX-License-Identifier: Apache-2.0
// Selects the narrow type of a test: bf16, and on CUDA f16 as well.
#pragma once

#include "kernels/bf16_value.hpp"
#include "kernels/f16_value.hpp"
#include "rig.hpp"

namespace rig {

inline device::DType& narrow_type() {
  static device::DType type = device::DType::bf16;
  return type;
}
inline uint16_t narrowed(float x) {
  if (narrow_type() == device::DType::f16) return kernels::loops::round_to_f16(x).bits;
  return kernels::loops::round_to_bf16(x).bits;
}
inline float widened(uint16_t bits) {
  if (narrow_type() == device::DType::f16) return to_float(kernels::loops::F16{bits});
  return to_float(kernels::loops::Bf16{bits});
}
inline std::vector<uint16_t> narrowed(const std::vector<float>& x) {
  std::vector<uint16_t> y;
  for (float v : x) y.push_back(narrowed(v));
  return y;
}
inline View narrow_view(std::vector<uint16_t>& v) {
  return {v.data(), narrow_type(), int64_t(v.size())};
}

// A tensor of f32, or of the narrow type.
class Numbers {
 public:
  Numbers(const std::vector<float>& values, bool narrow)
      : wide_(values, 1), narrow_(narrowed(values)), is_narrow_(narrow) {}
  View view() { return is_narrow_ ? narrow_view(narrow_) : wide_.view(); }
  std::vector<float> values() const {
    if (!is_narrow_) return wide_.values();
    std::vector<float> out;
    for (uint16_t bits : narrow_) out.push_back(widened(bits));
    return out;
  }

 private:
  Tensor wide_;
  std::vector<uint16_t> narrow_;
  bool is_narrow_;
};

// Returns the rounding error of the type relative to that of bf16.
inline double narrow_part() { return narrow_type() == device::DType::f16 ? 0.125 : 1; }

template <class F>
void for_each_narrow_type(const F& body) {
  for (device::DType type : {device::DType::bf16, device::DType::f16}) {
    if (type == device::DType::f16 && !on_cuda()) continue;
    SCOPED_TRACE(device::name_of(type));
    narrow_type() = type;
    body();
  }
  narrow_type() = device::DType::bf16;
}

}  // namespace rig
