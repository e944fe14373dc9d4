// SPDX-License-Identifier: Apache-2.0
#include "models/embed_pass.hpp"

#include <algorithm>
#include <cstring>

#include "base/text.hpp"
#include "kernels/token_mean.hpp"

namespace models {
namespace {

using device::DType;

constexpr const char* kPooledTap = "pre_logits";
constexpr const char* kTokensTap = "encoded";

}  // namespace

std::string block_tap(int64_t block) { return fmt::format("block{:02}", block); }
std::string mean_tap(int64_t block) { return block_tap(block) + "_mean"; }

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
  if (values.type != DType::f32) {
    const View wide = ctx.arena.temporary(values.count);
    ctx.run(kernels::Cast{.y = wide, .x = values});
    values = wide;
  }
  if (to)
    device::read_on_host(values, ctx.queue, [&](View v) { std::copy_n(v.f32(), v.count, to); });
}

namespace {

class VitEmbedPass : public EmbedPass {
 public:
  VitEmbedPass(const EmbedParts& parts, const std::vector<std::string>& names)
      : parts_(parts), taps_(chosen_taps(vit_taps(parts.encoder.config()), names)) {}

  std::string name() const override {
    std::vector<std::string> names;
    for (const Tap& tap : taps_) names.push_back(tap.name);
    return fmt::format("embed({})", base::join(names, ", "));
  }
  std::vector<InputSpec> inputs() const override { return {parts_.image}; }
  const std::vector<Tap>& taps() const override { return taps_; }

  void prepare(const HostBatch& batch, const Inputs& into) const override {
    const View image = batch.features.at("image"), buffer = into.at("image").host;
    CHECK(image.count == buffer.count && image.type == buffer.type,
          "batch of {} examples does not fit the buffers", batch.examples);
    std::memcpy(buffer.data, image.data, size_t(image.bytes()));
  }

  void run(nn::Context& ctx, const Inputs& inputs, const std::vector<float*>& features) override {
    CHECK(!ctx.keep);
    const bool planned = ctx.queue.kind() == device::Kind::plan;
    CHECK(planned || features.size() == taps_.size());
    // Reads a tap, whose values are on the device, if it is one of this pass.
    auto read = [&](const std::string& tap, View values) {
      for (size_t t = 0; t < taps_.size(); ++t)
        if (taps_[t].name == tap) copy_features(ctx, values, planned ? nullptr : features[t]);
    };
    const device::Arena::Mark start = ctx.arena.low();
    device::Arena::Scope scope(ctx.arena);
    parts_.encoder.place(ctx, encoder_);
    encoder_.after_block = [&](int64_t block, View tokens) {
      read(block_tap(block), tokens);
      if (has(mean_tap(block))) {
        device::Arena::Scope inner(ctx.arena);
        read(mean_tap(block), mean(ctx, tokens));
      }
    };
    const View tokens = parts_.encoder.forward(ctx, inputs.at("image").device, -1, encoder_);
    encoder_.after_block = {};
    read(kTokensTap, tokens);
    if (has(kPooledTap)) read(kPooledTap, mean(ctx, tokens));
    ctx.arena.pop_low(start);
  }

 private:
  bool has(const std::string& tap) const {
    return std::any_of(taps_.begin(), taps_.end(), [&](const Tap& t) { return t.name == tap; });
  }
  View mean(nn::Context& ctx, View tokens) const {
    const VitConfig& vit = parts_.encoder.config();
    View y = ctx.arena.temporary(ctx.batch * vit.width);
    ctx.run(kernels::TokenMeanForward{
        .y = y, .x = tokens, .batch = ctx.batch, .rows = vit.tokens(), .width = vit.width});
    return y;
  }
  EmbedParts parts_;
  std::vector<Tap> taps_;
  Vit::Pass encoder_;
};

}  // namespace

std::vector<Tap> vit_taps(const VitConfig& config) {
  const std::vector<int64_t> vector = {config.width}, tokens = {config.tokens(), config.width};
  std::vector<Tap> taps = {{kPooledTap, vector, "the pooled vector, which a head reads"},
                           {kTokensTap, tokens, "the normalised tokens"}};
  for (int64_t i = 0; i < config.depth; ++i) {
    taps.push_back({block_tap(i), tokens, fmt::format("the output of block {}", i)});
    taps.push_back({mean_tap(i), vector, fmt::format("the mean over tokens of {}", block_tap(i))});
  }
  return taps;
}

std::unique_ptr<EmbedPass> make_vit_embed_pass(const EmbedParts& parts,
                                               const std::vector<std::string>& taps) {
  return std::make_unique<VitEmbedPass>(parts, taps);
}

}  // namespace models
