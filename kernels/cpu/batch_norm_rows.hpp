// SPDX-License-Identifier: Apache-2.0
// Arguments of the inner loops of batch normalisation: rows of one group. Arrays of numbers per
// column are padded with zeros to a multiple of 16 columns.
#pragma once

#include <cstdint>

namespace kernels {

// y = x * factor + shift, + shortcut (* shortcut_factor + shortcut_shift), then ReLU
template <class T>
struct BatchNormRows {
  T* y;
  const T *x, *shortcut;                          // shortcut may be null
  const float *factor, *shift;                    // [columns]
  const float *shortcut_factor, *shortcut_shift;  // [columns]; null: 1 and 0
  int64_t rows, columns;
  bool relu;
  bool streams;  // y goes past the caches; its rows are whole lines of the caches
};

// The loop of sums adds to `first` and `second`: x and x^2, or g and g * (x - mean).
template <class T>
struct BatchNormSumRows {
  const T* x;
  double *first, *second;  // [columns]
  int64_t rows, columns;
};

template <class T>
struct BatchNormGradientSumRows {
  T* g;                                // may be null
  const T *dy, *add, *y, *x;           // add and y may be null
  const float *mean, *factor, *shift;  // [columns]
  double *first, *second;              // [columns]
  int64_t rows, columns;
  bool relu;  // without y: g is 0 where x * factor + shift is not above 0
};

// dx = g * factor + x * slope + offset
template <class T>
struct BatchNormGradientRows {
  T* dx;
  const T *dy, *x;
  const float *factor, *shift, *slope, *offset;  // [columns]
  int64_t rows, columns;
  bool relu;     // g is 0 where x * factor + shift is not above 0
  bool streams;  // dx goes past the caches; its rows are whole lines of the caches
};

}  // namespace kernels
