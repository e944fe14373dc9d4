// SPDX-License-Identifier: Apache-2.0
#include "models/trunk_embed_pass.hpp"

#include <cstring>

#include "base/text.hpp"
#include "models/embed_pass.hpp"

namespace models {
namespace {

class TrunkEmbedPass : public EmbedPass {
 public:
  TrunkEmbedPass(const Trunk& trunk, const InputSpec& image, const ImageGroup& group,
                 const std::vector<std::string>& names)
      : trunk_(trunk),
        image_(image),
        group_(group),
        taps_(chosen_taps(trunk.taps(group.height, group.width), names)),
        state_(trunk.make_pass()) {
    state_->taps = names;
  }

  std::string name() const override {
    return fmt::format("embed({})", base::join(state_->taps, ", "));
  }
  std::vector<InputSpec> inputs() const override { return {image_}; }
  const std::vector<Tap>& taps() const override { return taps_; }

  void prepare(const HostBatch& batch, const Inputs& into) const override {
    const View image = batch.features.at(image_.name), buffer = into.at(image_.name).host;
    CHECK(image.count == buffer.count && image.type == buffer.type,
          "batch of {} examples does not fit the buffers", batch.examples);
    std::memcpy(buffer.data, image.data, size_t(image.bytes()));
  }

  void run(nn::Context& ctx, const Inputs& inputs, const std::vector<float*>& features) override {
    CHECK(!ctx.keep);
    const bool planned = ctx.queue.kind() == device::Kind::plan;
    CHECK(planned || features.size() == taps_.size());
    state_->read_tap = [&](const Trunk::TapValues& values) {
      for (size_t t = 0; t < taps_.size(); ++t)
        if (taps_[t].name == values.tap)
          copy_features(ctx, values.values, planned ? nullptr : features[t]);
    };
    const device::Arena::Mark start = ctx.arena.low();
    device::Arena::Scope scope(ctx.arena);
    group_.images = inputs.at(image_.name).device;
    trunk_.place(ctx, {&group_, 1}, *state_);
    trunk_.forward(ctx, {&group_, 1}, -1, *state_);
    state_->read_tap = {};
    ctx.arena.pop_low(start);
  }

 private:
  const Trunk& trunk_;
  InputSpec image_;
  ImageGroup group_;
  std::vector<Tap> taps_;
  std::unique_ptr<Trunk::Pass> state_;
};

}  // namespace

std::unique_ptr<EmbedPass> make_trunk_embed_pass(const Trunk& trunk, const InputSpec& image,
                                                 int64_t height, int64_t width,
                                                 const std::vector<std::string>& taps) {
  return std::make_unique<TrunkEmbedPass>(
      trunk, image, ImageGroup{.images = {}, .height = height, .width = width}, taps);
}

}  // namespace models
