// SPDX-License-Identifier: Apache-2.0
// Position tables of another image size.
#pragma once

#include <cstdint>
#include <vector>

namespace checkpoint {

// Side of a square grid of `rows` rows; -1 if there is none.
int64_t grid_side(int64_t rows);

// [from * from, width] -> [to * to, width]: separable linear interpolation with the corners
// aligned, output i at input i (from - 1) / (to - 1), summed in f64 (cappa.md 7.5: SciPy zoom of
// order 1).
std::vector<float> resample_grid(const std::vector<float>& table, int64_t from, int64_t to,
                                 int64_t width);

}  // namespace checkpoint
