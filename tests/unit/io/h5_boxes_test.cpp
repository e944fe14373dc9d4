// SPDX-License-Identifier: Apache-2.0
// Boxes hold exactly the elements of their range, in its order.
#include "io/h5_boxes.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace {

using io::boxes_of;
using io::H5Box;
using Places = std::vector<uint64_t>;

// Adds the numbers of a box's elements, in row-major order.
void add_elements(const Places& shape, const H5Box& box, Places& out) {
  uint64_t count = 1;
  for (uint64_t c : box.count) count *= c;
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t left = i, element = 0, below = 1;
    for (size_t axis = shape.size(); axis-- > 0;) {
      element += (box.start[axis] + left % box.count[axis]) * below;
      left /= box.count[axis];
      below *= shape[axis];
    }
    out.push_back(element);
  }
}

TEST(H5Boxes, HoldARangeInItsOrder) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    Places shape(1 + random() % 4);
    for (uint64_t& n : shape) n = 1 + random() % 5;
    const uint64_t all =
        std::accumulate(shape.begin(), shape.end(), uint64_t{1}, std::multiplies<>());
    const uint64_t begin = random() % all, end = begin + 1 + random() % (all - begin);
    const std::vector<H5Box> boxes = boxes_of(shape, begin, end);
    ASSERT_LE(boxes.size(), 2 * shape.size() - 1);
    Places elements, wanted(end - begin);
    for (const H5Box& box : boxes) add_elements(shape, box, elements);
    std::iota(wanted.begin(), wanted.end(), begin);
    ASSERT_EQ(elements, wanted);
  }
}

TEST(H5Boxes, AreOneWhereTheyCan) {
  EXPECT_EQ(boxes_of({7}, 2, 5), (std::vector<H5Box>{{{2}, {3}}}));
  EXPECT_EQ(boxes_of({4, 3}, 0, 12), (std::vector<H5Box>{{{0, 0}, {4, 3}}}));
  EXPECT_EQ(boxes_of({4, 3}, 3, 9), (std::vector<H5Box>{{{1, 0}, {2, 3}}}));
  EXPECT_EQ(boxes_of({4, 3}, 4, 5), (std::vector<H5Box>{{{1, 1}, {1, 1}}}));
}

}  // namespace
