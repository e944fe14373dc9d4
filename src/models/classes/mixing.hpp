// SPDX-License-Identifier: Apache-2.0
// Mixup and CutMix of a classifier's images: what each image of the batch is mixed with, and in
// which shares. All draws are pure functions of a stream and the position of the example, so mixes
// do not depend on ranks. Formulas: ssl.md 6.4; with the default keys they are big_vision's mixup.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "config/table.hpp"
#include "kernels/mix_images.hpp"
#include "models/model.hpp"

namespace models {

// The examples that have equal draws: none, an example and its partner, or a whole group.
enum class MixDraw { elem, pair, batch };

inline constexpr std::pair<const char*, kernels::MixPartner> kMixPartnerNames[] = {
    {"previous", kernels::MixPartner::previous}, {"mirrored", kernels::MixPartner::mirrored}};
inline constexpr std::pair<const char*, MixDraw> kMixDrawNames[] = {
    {"elem", MixDraw::elem}, {"pair", MixDraw::pair}, {"batch", MixDraw::batch}};

// [model] mixup
struct MixupOptions {
  double p = 0;       // shares are drawn from Beta(p, p); 0: no image is blended
  int64_t group = 2;  // consecutive examples of the global batch that form a group of partners
  double cutmix_p = 0;
  double switch_probability = 0.5;
  kernels::MixPartner partner = kernels::MixPartner::previous;
  MixDraw draw = MixDraw::elem;
  bool larger = true;  // share
  void bind(config::Table& t);
  bool on() const { return p > 0 || cutmix_p > 0; }
};

// The changes to one example.
struct Mix {
  float share = 1;               // the image's part in its label
  float blend = 1;               // the image's part in each pixel outside the box
  std::array<int32_t, 4> box{};  // of the partner (kernels::MixImages)
};

// Returns a number of the distribution Beta(p, p), a pure function of the stream: draws 0 and 1.
double beta_share(const base::Stream& stream, double p);
// Returns the larger of beta_share and its complement, as big_vision does.
float mixup_share(const base::Stream& stream, double p);
// Returns the box of CutMix for a share of Beta: int(size * sqrt(1 - share)) pixels about a centre
// in [0, height) x [0, width), clipped to the image.
std::array<int32_t, 4> cutmix_box(double share, int64_t y, int64_t x, int64_t height,
                                  int64_t width);
// Returns the part of the image outside the box.
double share_left(const std::array<int32_t, 4>& box, int64_t height, int64_t width);
// Draws the mix of one example from its stream.
Mix draw_mix(const MixupOptions& options, const base::Stream& stream, int64_t height,
             int64_t width);

class Mixing {
 public:
  Mixing(const MixupOptions& options, int64_t height, int64_t width)
      : options_(options), height_(height), width_(width) {}
  bool on() const { return options_.on(); }
  // The input buffers of a training pass: `share`, and `blend` and `box` if pixels have other
  // shares than labels.
  std::vector<InputSpec> inputs() const;
  int64_t partner(int64_t example) const {
    return kernels::mix_partner(example, options_.group, options_.partner);
  }
  // Draws for the examples of a pass from the step's stream; empty without mixing.
  std::vector<Mix> draw(int64_t examples, int64_t first_position, const base::Stream& step) const;
  // Fills the buffers.
  void fill(const std::vector<Mix>& mixes, const Inputs& into) const;
  // Refuses groups that a pass would cut.
  void check(int64_t batch) const;
  // Returns the mixed images f32 [batch, height, width, 3], or the images themselves without
  // mixing. range: scale of bytes.
  View mixed(nn::Context& ctx, const Inputs& inputs, View image,
             const kernels::PixelRange& range) const;

 private:
  bool pixels_differ() const { return options_.cutmix_p > 0 || !options_.larger; }

  MixupOptions options_;
  int64_t height_, width_;
};

}  // namespace models
