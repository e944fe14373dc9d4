// SPDX-License-Identifier: Apache-2.0
// Values of the newest two steps. A GPU works on a step while the host handles the report of the
// step before. A value must be read before two more steps begin.
#pragma once

#include <array>
#include <cstdint>

namespace base {

template <class T>
class PerStep {
 public:
  T& operator[](int64_t step) { return slots_[size_t(step) % slots_.size()]; }
  const T& operator[](int64_t step) const { return slots_[size_t(step) % slots_.size()]; }

  auto begin() { return slots_.begin(); }
  auto end() { return slots_.end(); }

 private:
  std::array<T, 2> slots_{};
};

}  // namespace base
