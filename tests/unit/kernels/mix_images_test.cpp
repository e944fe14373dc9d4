// SPDX-License-Identifier: Apache-2.0
// Tests mixup against plain loops: the blended pairs, of floats and of bytes.
#include "kernels/mix_images.hpp"

#include "rig.hpp"

COVERS(mix_images);

namespace {

using namespace kernels;
using namespace rig;

TEST(MixImages, PartnersAreTheExamplesBeforeWithinGroups) {
  std::vector<int64_t> partners;
  for (int64_t b = 0; b < 8; ++b) partners.push_back(mix_partner(b, 4));
  EXPECT_EQ(partners, (std::vector<int64_t>{3, 0, 1, 2, 7, 4, 5, 6}));
  EXPECT_EQ(mix_partner(4, 2), 5);
  EXPECT_EQ(mix_partner(5, 2), 4);
}

// Bytes must give the bits of equal pixels as floats. A piece of work is smaller than the largest
// image here.
TEST(MixImages, AreBlendsOfFloatsAndOfBytes) {
  for (auto [batch, count, group] :
       {std::array<int64_t, 3>{2, 3, 2}, {8, 48, 4}, {6, 5000, 3}, {4, 9, 4}, {0, 7, 2}}) {
    SCOPED_TRACE(fmt::format("{} examples of {} in groups of {}", batch, count, group));
    TestQueue queue(2);
    const PixelRange range{0, 255, -1, 2};
    std::vector<uint8_t> bytes;
    for (int32_t v : integers(batch * count, 0, 256, "pixels")) bytes.push_back(uint8_t(v));
    std::vector<float> pixels, shares;
    for (uint8_t b : bytes) {
      const float part = (float(b) - range.low) / range.width;
      const float scaled = part * range.to_width;
      pixels.push_back(range.to_low + scaled);
    }
    for (int64_t b = 0; b < batch; ++b) shares.push_back(0.5f + 0.07f * float(b % 7));
    Tensor x(pixels, 1), of_floats(batch * count, 1), of_bytes(batch * count), share(shares);
    run(MixImages{of_floats, x, share, batch, count, group}, queue);
    run(MixImages{of_bytes, device::view(bytes.data(), batch * count), share, batch, count, group,
                  range},
        queue);
    EXPECT_TRUE(same_bits(of_floats.values(), of_bytes.values()));
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t other = b % group ? b - 1 : b + group - 1;
      for (int64_t i = 0; i < count; ++i) {
        const double want =
            double(shares[size_t(b)]) * double(pixels[size_t(b * count + i)]) +
            (1 - double(shares[size_t(b)])) * double(pixels[size_t(other * count + i)]);
        ASSERT_NEAR(double(of_floats[b * count + i]), want, 2e-7) << b << " " << i;
      }
    }
  }
}

TEST(MixImages, CostAndChecks) {
  Tensor x(12), y(12), shares(4);
  MixImages a{y, x, shares, 4, 3, 2};
  check(a);
  EXPECT_EQ(cost(a).bytes, 12 * 12 + 16);
  a.group = 3;
  EXPECT_ERROR(check(a), "mix_images", "4 examples in groups of 3");
  a.group = 2;
  a.count = 4;
  EXPECT_ERROR(check(a), "y has 12 elements", "[4, 4]");
}

}  // namespace
