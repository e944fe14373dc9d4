// SPDX-License-Identifier: Apache-2.0
// Element types and untyped views, which CPU and CUDA code share.
//
// The folder device holds memory and work queues: device kind, queue (stream), event, buffer,
// two-ended arena, memory ledger. It knows no op, no model, no rank.
#pragma once

#include <cstdint>

#include "base/error.hpp"

namespace device {

enum class DType : uint8_t { f32, bf16, f16, f64, i32, i64, u8 };

constexpr int64_t size_of(DType type) {
  switch (type) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::u8:
      return 1;
  }
  return 0;
}
const char* name_of(DType type);

// `count` contiguous elements. Owns nothing. Under the plan back end `data` must not be read.
struct View {
  void* data = nullptr;
  DType type = DType::f32;
  int64_t count = 0;

  bool none() const { return data == nullptr; }
  int64_t bytes() const { return count * size_of(type); }
  View slice(int64_t begin, int64_t n) const {
    CHECK(begin >= 0 && n >= 0 && begin + n <= count, "slice [{}, +{}) of a view of {}", begin, n,
          count);
    return {static_cast<char*>(data) + begin * size_of(type), type, n};
  }
  template <class T>
  T* as(DType expected) const {
    CHECK(type == expected, "view holds {}, not {}", name_of(type), name_of(expected));
    return static_cast<T*>(data);
  }
  float* f32() const { return as<float>(DType::f32); }
  uint16_t* bf16() const { return as<uint16_t>(DType::bf16); }
  double* f64() const { return as<double>(DType::f64); }
  int32_t* i32() const { return as<int32_t>(DType::i32); }
  uint8_t* u8() const { return as<uint8_t>(DType::u8); }
};

inline View view(float* p, int64_t n) { return {p, DType::f32, n}; }
inline View view(const float* p, int64_t n) { return {const_cast<float*>(p), DType::f32, n}; }
inline View view(int32_t* p, int64_t n) { return {p, DType::i32, n}; }
inline View view(const int32_t* p, int64_t n) { return {const_cast<int32_t*>(p), DType::i32, n}; }
inline View view(uint8_t* p, int64_t n) { return {p, DType::u8, n}; }
inline View view(const uint8_t* p, int64_t n) { return {const_cast<uint8_t*>(p), DType::u8, n}; }

}  // namespace device
