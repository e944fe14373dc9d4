// SPDX-License-Identifier: Apache-2.0
// Adds leaves along a binary tree, neighbours first, with log2(n) + 1 buffers (design 3.4). Leaf i
// is written into slot `next_slot()`; `push` then adds finished neighbours. After `finish` the sum
// is in slot 0.
#pragma once

#include <array>
#include <cstddef>

namespace base {

class TreeSum {
 public:
  int next_slot() const { return count_; }
  // `add(into, from)` computes slot `into` += slot `from`.
  template <class Add>
  void push(Add add) {
    levels_[size_t(count_++)] = 0;
    while (count_ >= 2 && levels_[size_t(count_ - 2)] == levels_[size_t(count_ - 1)]) fold(add);
  }
  // Adds the remaining slots, newest first, for counts that are not a power of two.
  template <class Add>
  void finish(Add add) {
    while (count_ >= 2) fold(add);
    count_ = 0;
  }
  // Returns the slots needed for n leaves.
  static int slots(long n) {
    int s = 1;
    for (long m = 1; m < n; m *= 2) ++s;
    return s;
  }

 private:
  template <class Add>
  void fold(Add add) {
    int newer = count_ - 1;
    add(newer - 1, newer);
    ++levels_[size_t(newer - 1)];
    --count_;
  }
  // depth of each finished subtree; an array, so the compute thread allocates nothing
  std::array<int, 64> levels_{};
  int count_ = 0;
};

}  // namespace base
