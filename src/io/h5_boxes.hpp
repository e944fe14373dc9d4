// SPDX-License-Identifier: Apache-2.0
// Ranges of an array's elements as boxes, which is how HDF5 selects them.
#pragma once

#include <cstdint>
#include <vector>

namespace io {

struct H5Box {
  std::vector<uint64_t> start, count;  // of each axis
  bool operator==(const H5Box&) const = default;
};

// Cuts the elements [begin, end) of an array, in row-major order, into boxes. There are at most
// 2 * axes - 1, and their elements follow one another. The array has at least one axis.
std::vector<H5Box> boxes_of(const std::vector<uint64_t>& shape, uint64_t begin, uint64_t end);

}  // namespace io
