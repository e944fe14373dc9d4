// SPDX-License-Identifier: Apache-2.0
// Tests the draws of mixup and CutMix: distributions, boxes, and which examples share a draw,
// however a batch is cut into passes.
#include "models/classes/mixing.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace {

using kernels::MixPartner;
using models::Mix;
using models::MixDraw;
using models::Mixing;
using models::MixupOptions;

bool same(const Mix& a, const Mix& b) {
  return a.share == b.share && a.blend == b.blend && a.box == b.box;
}

TEST(Mixing, DrawnSharesAreBeta) {
  for (double p : {0.2, 0.8, 1.0, 5.0}) {
    const int n = 40000;
    double mean = 0, square = 0;
    for (int i = 0; i < n; ++i) {
      const double s = models::beta_share(base::Stream(1, "shares").sub(uint64_t(i)), p);
      ASSERT_TRUE(s >= 0 && s <= 1) << s;
      mean += s / n;
      square += (s - 0.5) * (s - 0.5) / n;
    }
    EXPECT_NEAR(mean, 0.5, 0.01) << p;
    // The variance of Beta(p, p) is 1 / (4 (2p + 1)).
    EXPECT_NEAR(square, 1 / (4 * (2 * p + 1)), 0.004) << p;
  }
}

TEST(Mixing, BoxesHaveTheDrawnSizeAndAreClipped) {
  using Box = std::array<int32_t, 4>;
  EXPECT_EQ(models::cutmix_box(0.75, 10, 20, 32, 48), (Box{2, 18, 8, 32})) << "half of each side";
  EXPECT_EQ(models::cutmix_box(0.75, 0, 47, 32, 48), (Box{0, 8, 35, 48}));
  EXPECT_EQ(models::cutmix_box(0, 16, 24, 32, 48), (Box{0, 32, 0, 48}));
  EXPECT_EQ(models::cutmix_box(1, 16, 24, 32, 48), (Box{16, 16, 24, 24}));
  EXPECT_EQ(models::cutmix_box(0.5, 4, 4, 9, 9), (Box{1, 7, 1, 7})) << "int(9 sqrt(1/2)) = 6";
  EXPECT_EQ(models::share_left({2, 18, 8, 32}, 32, 48), 0.75);
  EXPECT_EQ(models::share_left({0, 8, 35, 48}, 32, 48), 1 - 8.0 * 13 / (32 * 48));
}

// A pass may hold any part of the batch that has whole groups.
TEST(Mixing, DrawsDependOnPositionsAlone) {
  for (MixDraw draw : {MixDraw::elem, MixDraw::pair, MixDraw::batch}) {
    const MixupOptions options{.p = 0.8,
                               .group = 4,
                               .cutmix_p = 1,
                               .partner = MixPartner::mirrored,
                               .draw = draw,
                               .larger = false};
    const Mixing mixing(options, 32, 48);
    const base::Stream step(3, "step");
    const std::vector<Mix> whole = mixing.draw(16, 160, step);
    for (int64_t n : {4, 8})
      for (int64_t first = 0; first < 16; first += n) {
        const std::vector<Mix> part = mixing.draw(n, 160 + first, step);
        for (int64_t i = 0; i < n; ++i)
          EXPECT_TRUE(same(part[size_t(i)], whole[size_t(first + i)])) << first << " " << i;
      }
    std::set<float> shares;
    for (int64_t b = 0; b < 16; ++b) {
      const Mix& mix = whole[size_t(b)];
      const int64_t alike = draw == MixDraw::elem   ? b
                            : draw == MixDraw::pair ? mixing.partner(b)
                                                    : b - b % 4;
      EXPECT_TRUE(same(mix, whole[size_t(alike)])) << b;
      shares.insert(mix.share);
    }
    EXPECT_EQ(shares.size(), draw == MixDraw::elem ? 16u : draw == MixDraw::pair ? 8u : 4u);
  }
}

TEST(Mixing, BoxesComeWithTheirProbability) {
  MixupOptions options{.p = 0.8, .cutmix_p = 1, .switch_probability = 0.3, .larger = false};
  const int n = 20000;
  int boxes = 0;
  for (int i = 0; i < n; ++i) {
    const Mix mix =
        models::draw_mix(options, base::Stream(5, "switch").sub(uint64_t(i)), 1000, 1000);
    const bool box = mix.blend == 1 && mix.share < 1;
    boxes += box;
    EXPECT_EQ(mix.share, box ? float(models::share_left(mix.box, 1000, 1000)) : mix.blend);
  }
  EXPECT_NEAR(double(boxes) / n, 0.3, 0.02);
  options.p = 0;
  EXPECT_EQ(models::draw_mix(options, base::Stream(5, "switch"), 8, 8).blend, 1)
      << "without blends all are boxes";
}

TEST(Mixing, LargerSharesAreThoseOfMixup) {
  const MixupOptions options{.p = 0.3, .group = 2};
  const Mixing mixing(options, 8, 8);
  EXPECT_EQ(mixing.inputs().size(), 1u) << "labels and pixels have one share";
  const base::Stream step(3, "step");
  const std::vector<Mix> mixes = mixing.draw(6, 40, step);
  for (uint64_t b = 0; b < 6; ++b)
    EXPECT_EQ(mixes[b].share,
              models::mixup_share(step.sub(base::stream_id("mixup")).sub(40 + b), 0.3));
}

}  // namespace
