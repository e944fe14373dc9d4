// SPDX-License-Identifier: Apache-2.0
// Tests mixup and CutMix against plain loops: the blended pairs, of floats and of bytes, and boxes.
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

TEST(MixImages, MirroredPartnersAreAtTheOtherEndOfTheirGroup) {
  std::vector<int64_t> partners;
  for (int64_t b = 0; b < 10; ++b) partners.push_back(mix_partner(b, 5, MixPartner::mirrored));
  EXPECT_EQ(partners, (std::vector<int64_t>{4, 3, 2, 1, 0, 9, 8, 7, 6, 5}));
}

// Bytes must give the bits of equal pixels as floats. A piece of work is smaller than the largest
// image here.
TEST(MixImages, AreBlendsOfFloatsAndOfBytes) {
  for (auto [batch, count, group] :
       {std::array<int64_t, 3>{2, 3, 2}, {8, 48, 4}, {6, 5000, 3}, {4, 9, 4}, {0, 7, 2}}) {
    SCOPED_TRACE(fmt::format("{} examples of {} in groups of {}", batch, count, group));
    TestQueue queue(2);
    const PixelRange range{0, 255, -1, 2, {0.5f, 0.25f, 0}, {0.5f, 0.3f, 2}};
    std::vector<uint8_t> bytes;
    for (int32_t v : integers(batch * count, 0, 256, "pixels")) bytes.push_back(uint8_t(v));
    std::vector<float> pixels, shares;
    for (size_t i = 0; i < bytes.size(); ++i) {
      const size_t channel = i % size_t(count) % 3;
      const float part = (float(bytes[i]) - range.low) / range.width;
      const float scaled = part * range.to_width;
      const float all = range.to_low + scaled;
      pixels.push_back((all - range.mean[channel]) / range.deviation[channel]);
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
        ASSERT_NEAR(double(of_floats[b * count + i]), want, 8e-7) << b << " " << i;
      }
    }
  }
}

// Within a box the pixels are the partner's own, outside of it they are the blend. Boxes may be
// empty, whole, or cut a piece of work.
TEST(MixImages, BoxesAreThePartnersPixels) {
  for (auto [height, width] : {std::pair<int64_t, int64_t>{8, 8}, {5, 7}, {60, 50}}) {
    SCOPED_TRACE(fmt::format("{} x {}", height, width));
    constexpr int64_t kBatch = 6;
    TestQueue queue(2);
    const int64_t count = height * width * 3;
    std::vector<uint8_t> bytes;
    for (int32_t v : integers(kBatch * count, 0, 256, "pixels")) bytes.push_back(uint8_t(v));
    const std::vector<float> pixels(bytes.begin(), bytes.end());
    std::vector<float> shares(size_t(kBatch), 1.0f);
    shares[1] = 0.25f;
    shares[3] = 0.625f;
    const auto h = int32_t(height), w = int32_t(width);
    const std::vector<int32_t> boxes = {0, 0, 0, 0, 1, h - 1, 2, 4, 0, h, 0,     w,
                                        2, 3, 0, w, 1, 1,     0, w, 0, h, w - 1, w};
    Tensor x(pixels, 1), y(kBatch * count, 1), of_bytes(kBatch * count), share(shares);
    MixImages a{.y = y,
                .x = x,
                .shares = share,
                .batch = kBatch,
                .count = count,
                .group = 6,
                .range = {0, 1, 0, 1},
                .partner = MixPartner::mirrored,
                .boxes = device::view(boxes.data(), 4 * kBatch),
                .row_values = 3 * width};
    run(a, queue);
    a.y = of_bytes;
    a.x = device::view(bytes.data(), kBatch * count);
    run(a, queue);
    EXPECT_TRUE(same_bits(y.values(), of_bytes.values()));
    for (int64_t b = 0; b < kBatch; ++b)
      for (int64_t i = 0; i < count; ++i) {
        const int64_t row = i / (3 * width), column = i % (3 * width) / 3, other = kBatch - 1 - b;
        const int32_t* box = boxes.data() + 4 * b;
        const bool inside = row >= box[0] && row < box[1] && column >= box[2] && column < box[3];
        const double own = double(pixels[size_t(b * count + i)]),
                     theirs = double(pixels[size_t(other * count + i)]),
                     s = double(shares[size_t(b)]);
        ASSERT_EQ(double(y[b * count + i]), inside ? theirs : s * own + (1 - s) * theirs)
            << b << " " << i;
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
  std::vector<int32_t> boxes(16);
  a.boxes = device::view(boxes.data(), 16);
  a.row_values = 2;
  EXPECT_ERROR(check(a), "rows of 2 values do not cut an image of 3");
  a.row_values = 3;
  check(a);
  a.boxes = {};
  a.count = 4;
  EXPECT_ERROR(check(a), "y has 12 elements", "[4, 4]");
}

}  // namespace
