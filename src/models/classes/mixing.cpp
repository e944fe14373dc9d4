// SPDX-License-Identifier: Apache-2.0
#include "models/classes/mixing.hpp"

#include <algorithm>
#include <cmath>

#include "base/elementary.hpp"

namespace models {

using device::DType;

void MixupOptions::bind(config::Table& t) {
  t.key("p", p,
        "an image and its partner have shares drawn from Beta(p, p); drawn for each example from "
        "(run.seed, step, position); 0 = off")
      .min(0)
      .max(1000);
  t.key("group", group,
        "consecutive examples of the global batch that form a group of partners; must divide the "
        "examples of a rank's pass")
      .min(2)
      .max(1 << 20)
      .unit("examples");
  t.key("cutmix_p", cutmix_p,
        "CutMix: a box of the partner replaces a part of the image that is drawn from Beta(p, p); "
        "0 = off")
      .min(0)
      .max(1000);
  t.key("switch_probability", switch_probability,
        "with p and cutmix_p: the probability of a box instead of a blend")
      .min(0)
      .max(1);
  t.choice("partner", partner, kMixPartnerNames,
           "previous: the example before it in the group, the last one for the first; mirrored: "
           "example group - 1 - i for example i of the group, as VISSL does");
  t.choice("draw", draw, kMixDrawNames,
           "elem: each example has its own share and box; pair: an example and its mirrored "
           "partner have the same; batch: all of a group");
  t.choice("share", larger, {{"larger", true}, {"drawn", false}},
           "larger: the image has the larger of the two shares, as big_vision does; drawn: it has "
           "the share as drawn, as VISSL does");
  if (draw == MixDraw::pair && partner != kernels::MixPartner::mirrored)
    t.error("draw", "\"pair\" needs partner = \"mirrored\": only then are partners mutual");
}

// If T has Student's distribution with 2p degrees of freedom (Bailey 1994), 1/2 (1 + T / sqrt(2p +
// T^2)) has the distribution Beta(p, p). |T| gives the larger share.
float mixup_share(const base::Stream& stream, double p) {
  const double u = 1 - stream.uniform64(0), angle = 2 * M_PI * stream.uniform64(1);
  const double cosine = base::math::cos(angle),
               square = (base::math::pow(u, -1 / p) - 1) * cosine * cosine;  // T^2 / 2p
  const double share = std::isinf(square) ? 1 : 0.5 + 0.5 * std::sqrt(square / (1 + square));
  return float(std::min(share, 1.0));
}

double beta_share(const base::Stream& stream, double p) {
  const double larger = double(mixup_share(stream, p));
  return base::math::cos(2 * M_PI * stream.uniform64(1)) < 0 ? 1 - larger : larger;
}

std::array<int32_t, 4> cutmix_box(double share, int64_t y, int64_t x, int64_t height,
                                  int64_t width) {
  const double side = std::sqrt(1 - share);
  const int64_t rows = int64_t(double(height) * side) / 2,
                columns = int64_t(double(width) * side) / 2;
  auto within = [](int64_t at, int64_t end) { return int32_t(std::clamp<int64_t>(at, 0, end)); };
  return {within(y - rows, height), within(y + rows, height), within(x - columns, width),
          within(x + columns, width)};
}

double share_left(const std::array<int32_t, 4>& box, int64_t height, int64_t width) {
  const int64_t area = int64_t(box[1] - box[0]) * (box[3] - box[2]);
  return 1 - double(area) / double(height * width);
}

Mix draw_mix(const MixupOptions& options, const base::Stream& stream, int64_t height,
             int64_t width) {
  const bool both = options.p > 0 && options.cutmix_p > 0;
  const bool box = both ? stream.uniform64(2) < options.switch_probability : options.cutmix_p > 0;
  const double p = box ? options.cutmix_p : options.p;
  const double share = options.larger ? double(mixup_share(stream, p)) : beta_share(stream, p);
  if (!box) return {.share = float(share), .blend = float(share), .box = {}};
  const int64_t y = int64_t(stream.uniform64(3) * double(height)),
                x = int64_t(stream.uniform64(4) * double(width));
  Mix mix;
  mix.box = cutmix_box(share, y, x, height, width);
  mix.share = float(share_left(mix.box, height, width));
  return mix;
}

std::vector<InputSpec> Mixing::inputs() const {
  if (!on()) return {};
  std::vector<InputSpec> specs = {{"share", DType::f32, 1}};
  if (pixels_differ())
    specs.insert(specs.end(), {{"blend", DType::f32, 1}, {"box", DType::i32, 4}});
  return specs;
}

std::vector<Mix> Mixing::draw(int64_t examples, int64_t first_position,
                              const base::Stream& step) const {
  std::vector<Mix> mixes;
  if (!on()) return mixes;
  const base::Stream shares = step.sub(base::stream_id("mixup"));
  for (int64_t b = 0; b < examples; ++b) {
    const int64_t drawn = options_.draw == MixDraw::elem   ? b
                          : options_.draw == MixDraw::pair ? std::min(b, partner(b))
                                                           : b - b % options_.group;
    mixes.push_back(
        draw_mix(options_, shares.sub(uint64_t(first_position + drawn)), height_, width_));
  }
  return mixes;
}

void Mixing::fill(const std::vector<Mix>& mixes, const Inputs& into) const {
  for (size_t b = 0; b < mixes.size(); ++b) {
    into.at("share").host.f32()[b] = mixes[b].share;
    if (!pixels_differ()) continue;
    into.at("blend").host.f32()[b] = mixes[b].blend;
    std::copy(mixes[b].box.begin(), mixes[b].box.end(), into.at("box").host.i32() + 4 * b);
  }
}

void Mixing::check(int64_t batch) const {
  if (on() && batch % options_.group)
    base::fail(
        base::Exit::mesh,
        "model.mixup.group = {} does not divide the {} examples of a rank's pass, so partners "
        "would be on several ranks; choose another group, train.global_batch or train.micro_batch",
        options_.group, batch);
}

View Mixing::mixed(nn::Context& ctx, const Inputs& inputs, View image,
                   const kernels::PixelRange& range) const {
  if (!on()) return image;
  View y = ctx.arena.temporary(image.count);
  kernels::MixImages mix{.y = y,
                         .x = image,
                         .shares = inputs.at(pixels_differ() ? "blend" : "share").device,
                         .batch = ctx.batch,
                         .count = height_ * width_ * 3,
                         .group = options_.group,
                         .range = range,
                         .partner = options_.partner};
  if (options_.cutmix_p > 0) {
    mix.boxes = inputs.at("box").device;
    mix.row_values = 3 * width_;
  }
  ctx.run(mix);
  return y;
}

}  // namespace models
