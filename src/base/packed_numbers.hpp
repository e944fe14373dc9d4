// SPDX-License-Identifier: Apache-2.0
// Numbers in 1, 2 or 4 bytes each, as many as the largest one needs.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace base {

class PackedNumbers {
 public:
  PackedNumbers() = default;
  // Zeros, with room for numbers up to `most`.
  PackedNumbers(int64_t size, uint32_t most)
      : width_(width_for(most)), bytes_(size_t(size) * width_) {}

  int64_t size() const { return int64_t(bytes_.size() / width_); }
  int64_t bytes() const { return int64_t(bytes_.size()); }
  uint32_t operator[](int64_t i) const {
    uint32_t value = 0;  // little-endian
    switch (const uint8_t* at = bytes_.data() + size_t(i) * width_; width_) {
      case 1:
        return *at;
      case 2:
        std::memcpy(&value, at, 2);
        return value;
      default:
        std::memcpy(&value, at, 4);
        return value;
    }
  }
  void set(int64_t i, uint32_t value) {
    widen(width_for(value));
    std::memcpy(bytes_.data() + size_t(i) * width_, &value, width_);
  }
  void push_back(uint32_t value) {
    widen(width_for(value));
    bytes_.resize(bytes_.size() + width_);
    set(size() - 1, value);
  }

 private:
  static size_t width_for(uint32_t most) { return most < 256 ? 1 : most < 65536 ? 2 : 4; }
  void widen(size_t width) {
    if (width <= width_) return;
    std::vector<uint8_t> wider(size_t(size()) * width);
    for (int64_t i = 0; i < size(); ++i) {
      const uint32_t value = (*this)[i];
      std::memcpy(wider.data() + size_t(i) * width, &value, width);
    }
    bytes_ = std::move(wider);
    width_ = width;
  }

  size_t width_ = 1;
  std::vector<uint8_t> bytes_;
};

}  // namespace base
