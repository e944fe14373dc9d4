// SPDX-License-Identifier: Apache-2.0
#include "io/h5_boxes.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"

namespace io {
namespace {

// Adds the boxes of the elements [begin, end) of the part that has the indices `row` in the first
// axes.
void add_boxes(const std::vector<uint64_t>& shape, std::vector<uint64_t> row, uint64_t begin,
               uint64_t end, std::vector<H5Box>& out) {
  const size_t axis = row.size();
  uint64_t below = 1;  // elements of one place of this axis
  for (size_t i = axis + 1; i < shape.size(); ++i) below *= shape[i];
  auto inside = [&](uint64_t place, uint64_t from, uint64_t to) {
    row.push_back(place);
    add_boxes(shape, row, from, to, out);
    row.pop_back();
  };
  uint64_t first = begin / below;
  if (begin % below) {
    const uint64_t stop = std::min(end, (first + 1) * below);
    inside(first, begin - first * below, stop - first * below);
    begin = stop;
    ++first;
  }
  if (begin == end) return;
  if (const uint64_t last = end / below; last > first) {
    H5Box box{row, std::vector<uint64_t>(axis, 1)};
    box.start.push_back(first);
    box.count.push_back(last - first);
    for (size_t i = axis + 1; i < shape.size(); ++i) {
      box.start.push_back(0);
      box.count.push_back(shape[i]);
    }
    out.push_back(std::move(box));
    first = last;
  }
  if (end > first * below) inside(first, 0, end - first * below);
}

}  // namespace

std::vector<H5Box> boxes_of(const std::vector<uint64_t>& shape, uint64_t begin, uint64_t end) {
  CHECK(!shape.empty() && begin < end);
  std::vector<H5Box> out;
  add_boxes(shape, {}, begin, end, out);
  return out;
}

}  // namespace io
