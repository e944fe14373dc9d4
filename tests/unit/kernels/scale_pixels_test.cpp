// SPDX-License-Identifier: Apache-2.0
// Tests the values of pixels against single operations: of bytes with a range per channel, and of
// floats, which are only rounded.
#include "kernels/scale_pixels.hpp"

#include "narrow_type.hpp"

COVERS(scale_pixels);

namespace {

using namespace kernels;
using namespace rig;

const PixelRange kPerChannel{0, 255, 0, 1, {0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f}};

// Each operation is rounded.
float value_of(const PixelRange& r, uint8_t byte, int64_t channel) {
  const float moved = (float(byte) - r.low) / r.width * r.to_width;
  return (r.to_low + moved - r.mean[channel]) / r.deviation[channel];
}

TEST(ScalePixels, BytesAndFloats) {
  for_each_narrow_type([] {
    for_each_table([] {
      for (const PixelRange& range : {kPerChannel, PixelRange{0, 255, -1, 2}})
        for (int64_t pixels : {0, 1, 5, 64, 1027, 9000}) {
          SCOPED_TRACE(pixels);
          TestQueue queue(2);
          const int64_t count = pixels * 3;
          std::vector<uint8_t> bytes;
          for (int32_t v : integers(count, 0, 256, "pixels")) bytes.push_back(uint8_t(v));
          std::vector<float> expected;
          for (int64_t i = 0; i < count; ++i)
            expected.push_back(value_of(range, bytes[size_t(i)], i % 3));
          const View x = device::view(bytes.data(), count);
          Tensor values(count), copies(count), floats(expected, 1);
          run(ScalePixels{values, x, range}, queue);
          run(ScalePixels{copies, floats}, queue);
          EXPECT_TRUE(same_bits(values.values(), expected));
          EXPECT_TRUE(same_bits(copies.values(), expected));
          std::vector<uint16_t> of_bytes(size_t(count) + 1, 0xABCD), of_floats = of_bytes;
          run(ScalePixels{narrow_view(of_bytes).slice(0, count), x, range}, queue);
          run(ScalePixels{narrow_view(of_floats).slice(0, count), floats}, queue);
          for (int64_t i = 0; i < count; ++i) {
            ASSERT_EQ(of_bytes[size_t(i)], narrowed(expected[size_t(i)])) << i;
            ASSERT_EQ(of_floats[size_t(i)], narrowed(expected[size_t(i)])) << i;
          }
          EXPECT_EQ(of_bytes.back(), 0xABCD);  // no element more is written
          EXPECT_EQ(of_floats.back(), 0xABCD);
        }
    });
  });
}

TEST(ScalePixels, CostAndChecks) {
  Tensor x(12), y(12);
  ScalePixels a{y, x};
  check(a);
  EXPECT_EQ(cost(a).bytes, 2 * 48);
  a.range.deviation[1] = 0;
  EXPECT_ERROR(check(a), "scale_pixels", "no width");
  Tensor odd(10);
  EXPECT_ERROR(check(ScalePixels{odd, odd}), "10 values are not pixels");
  EXPECT_ERROR(check(ScalePixels{y, odd}), "x has 10 elements");
}

}  // namespace
