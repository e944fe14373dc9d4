// SPDX-License-Identifier: Apache-2.0
// Arguments of the vector loops of weight gradients. They multiply panels: kPanelColumns columns of
// some rows. A step of a panel is one vector: kPanelColumns floats of a row, or kPanelColumns pairs
// of bf16 of two rows.
#pragma once

#include <cstdint>

namespace kernels {

constexpr int64_t kPanelColumns = 16;

template <class T>
constexpr int64_t kRowsOfStep = int64_t(sizeof(float) / sizeof(T));

// Copies the columns from `first` on of rows to panels.
template <class T>
struct PanelRows {
  T* panel;
  const T* const* rows;  // [steps * kRowsOfStep]
  int64_t size;          // elements from one panel to the next
  int64_t first, panels, steps;
};

// sums = (+=) the products of each column of dy with each column of x, added over all rows.
template <class T>
struct WeightGradientTile {
  float* sums;      // [kPanelColumns, panels * kPanelColumns], rows are `stride` elements apart
  const T *dy, *x;  // one panel, and 1 or 2 panels that are `size` elements apart
  int64_t stride, size, panels, steps;
  bool add;
  // Addresses that later panels are made of, which the loop prefetches: at most 2 * steps.
  const T* const* later;
  int64_t later_count;
};

}  // namespace kernels
