// SPDX-License-Identifier: Apache-2.0
// Resamples position tables to another image size.
#pragma once

#include <cstdint>
#include <vector>

namespace checkpoint {

// Returns the side of a square grid with `rows` rows; -1 if `rows` is not a square.
int64_t grid_side(int64_t rows);

// Resamples [from * from, width] to [to * to, width] by separable linear interpolation with aligned
// corners. Output i is at input position i (from - 1) / (to - 1). Sums are in f64. The result
// equals SciPy's zoom of order 1 (cappa.md 7.5).
std::vector<float> resample_grid(const std::vector<float>& table, int64_t from, int64_t to,
                                 int64_t width);

}  // namespace checkpoint
