// SPDX-License-Identifier: Apache-2.0
// Arguments of the vector loops of our own products (portable_product.hpp).
#pragma once

#include <cstdint>

namespace kernels {

// An output of a product is a chain of fused multiply-adds over this many k, then the next chain is
// added, and so on. This number decides bits at determinism.level "anywhere": it never changes.
constexpr int64_t kChain = 256;

// c = (+=) the products of some rows and a panel of columns, over at most kChain k. `rows` is a
// multiple of ProductLoops::rows_step.
struct ProductTile {
  float* c;        // [rows, columns], rows are `stride` elements apart
  const float* a;  // number k of row r is at a + r * row_step + k * step
  const float* b;  // the columns of number k are at b + k * b_step
  int64_t stride, row_step, step, b_step, length, rows;
  int64_t ahead;  // elements from a column to the one of the next panel, which is fetched to cache
  bool add;
};

// panel[k * stride + i] = lines[i][k], for i < width, a multiple of 8, and k < length.
template <class T>
struct PanelOfLines {
  float* panel;
  const T* const* lines;  // [width]
  int64_t width, length, stride;
};

// Panels of `width` columns that follow each other, each [length, width]. The columns are those of
// lines[k], and 0 from `count` on.
template <class T>
struct PanelsOfColumns {
  float* panels;
  const T* const* lines;  // [length]
  int64_t width, count, length;
};

// sums[c] = (+=) the sum over k of a[k][c] * b[k][c], for c < count and k < length.
struct LineProducts {
  float* sums;
  const float *const *a, *const *b;  // [length], each of `count` elements
  int64_t count, length;
  bool add;
};

struct ProductLoops {
  int64_t rows, columns;  // of a tile: as many as its sums fit the registers
  int64_t rows_step;      // tiles of fewer rows have a multiple of these
  void (*multiply)(const ProductTile&);
  void (*multiply_lines)(const LineProducts&);
};

// Tiles have at most this many rows and columns.
constexpr int64_t kMostRows = 12, kMostColumns = 32;

}  // namespace kernels
