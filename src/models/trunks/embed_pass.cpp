// SPDX-License-Identifier: Apache-2.0
#include "models/trunks/embed_pass.hpp"

#include <algorithm>

#include "base/text.hpp"

namespace models {

std::vector<Tap> chosen_taps(const std::vector<Tap>& all, const std::vector<std::string>& names) {
  std::vector<Tap> out;
  for (const std::string& name : names) {
    const auto tap =
        std::find_if(all.begin(), all.end(), [&](const Tap& t) { return t.name == name; });
    if (tap == all.end()) {
      std::vector<std::string> known;
      for (const Tap& t : all) known.push_back(t.name);
      const std::string near = base::nearest_name(name, known);
      base::fail(base::Exit::config, "there is no tap {}{}; the model has {}", base::quoted(name),
                 near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near),
                 base::join(known, ", "));
    }
    CHECK(std::count(names.begin(), names.end(), name) == 1, "tap {} is named twice", name);
    out.push_back(*tap);
  }
  return out;
}

void copy_features(nn::Context& ctx, View values, float* to) {
  device::Arena::Scope scope(ctx.arena);
  if (values.type != device::DType::f32) {
    const View wide = ctx.arena.temporary(values.count);
    ctx.run(kernels::Cast{.y = wide, .x = values});
    values = wide;
  }
  if (to)
    device::read_on_host(values, ctx.queue, [&](View v) { std::copy_n(v.f32(), v.count, to); });
}

std::string embed_pass_name(const std::vector<Tap>& taps) {
  std::vector<std::string> names;
  for (const Tap& tap : taps) names.push_back(tap.name);
  return fmt::format("embed({})", base::join(names, ", "));
}

namespace {

class TrunkEmbedPass : public EmbedPass {
 public:
  TrunkEmbedPass(const PooledTrunk& encoder, const InputSpec& image, const ImageGroup& group,
                 const std::vector<std::string>& names)
      : encoder_(encoder),
        image_(image),
        group_(group),
        taps_(chosen_taps(encoder.trunk().taps(group.height, group.width), names)),
        state_(encoder.make_pass()) {
    state_.trunk->taps = names;
  }

  std::string name() const override { return embed_pass_name(taps_); }
  std::vector<InputSpec> inputs() const override { return {image_}; }
  const std::vector<Tap>& taps() const override { return taps_; }

  void run(nn::Context& ctx, const Inputs& inputs, const std::vector<float*>& features) override {
    CHECK(!ctx.keep);
    const bool planned = ctx.queue.kind() == device::Kind::plan;
    CHECK(planned || features.size() == taps_.size());
    state_.trunk->read_tap = [&](const Trunk::TapValues& values) {
      for (size_t t = 0; t < taps_.size(); ++t)
        if (taps_[t].name == values.tap)
          copy_features(ctx, values.values, planned ? nullptr : features[t]);
    };
    const device::Arena::Mark start = ctx.arena.low();
    device::Arena::Scope scope(ctx.arena);
    group_.images = inputs.at(image_.name).device;
    encoder_.place(ctx, {&group_, 1}, state_);
    encoder_.forward(ctx, {&group_, 1}, -1, state_);
    state_.trunk->read_tap = {};
    ctx.arena.pop_low(start);
  }

 private:
  const PooledTrunk& encoder_;
  InputSpec image_;
  ImageGroup group_;
  std::vector<Tap> taps_;
  PooledTrunk::Pass state_;
};

}  // namespace

std::unique_ptr<EmbedPass> make_trunk_embed_pass(const PooledTrunk& encoder, const InputSpec& image,
                                                 int64_t height, int64_t width,
                                                 const std::vector<std::string>& taps) {
  return std::make_unique<TrunkEmbedPass>(
      encoder, image, ImageGroup{.images = {}, .height = height, .width = width}, taps);
}

}  // namespace models
