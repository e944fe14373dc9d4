// SPDX-License-Identifier: Apache-2.0
// The pass that trains a masked autoencoder: targets, loss and gradients (mae.md 4).
#include <cmath>

#include "kernels/example_sums.hpp"
#include "kernels/layer_norm.hpp"
#include "kernels/target_xent.hpp"
#include "kernels/token_mean.hpp"
#include "models/masked/mae.hpp"

namespace models {
namespace {

constexpr double kPixelEpsilon = 1e-6;  // the published one

class MaePass : public TrainPass {
 public:
  explicit MaePass(const Mae& model) : model_(model), state_(model.make_state()) {}
  std::string name() const override { return "train"; }
  std::vector<InputSpec> inputs() const override { return model_.inputs(); }
  void prepare(const HostBatch& batch, base::Stream stream, const Inputs& into) const override {
    model_.prepare(model_.draw(batch.examples, batch.first_position, stream), into);
  }
  void run(nn::Context& ctx, const Inputs& inputs, int64_t global_batch, View sums) override {
    model_.forward_backward(ctx, inputs, global_batch, sums, state_);
  }

 private:
  const Mae& model_;
  Mae::State state_;
};

// Layer norms divide the variance of n numbers by n, and the published code divides it by n - 1.
// Returns the first variance as a share of the second.
double share_of_variance(int64_t n) { return double(n - 1) / double(n); }

}  // namespace

Mae::State Mae::make_state() const {
  const float scale = float(std::sqrt(share_of_variance(options_.pixels())));
  return {.encoder = trunk_.trunk().make_pass(),
          .scale = std::vector<float>(size_t(options_.pixels()), scale)};
}

void Mae::place(nn::Context& ctx, const Inputs& inputs, State& state) const {
  auto table = [&](const char* name) { return inputs.at(name).device; };
  state.start = ctx.arena.low();
  vit().place_some(ctx, images(),
                   {.count = options_.kept(),
                    .sources = table("token_sources"),
                    .patches = table("token_of_patch")},
                   *state.encoder);
  decoder_.place(ctx, state.decoder);
  if (options_.normalize_pixels) state.scale_of_pixels = ctx.table(true, state.scale);
}

void Mae::predict(nn::Context& ctx, const Inputs& inputs, View pixels, State& state) const {
  auto table = [&](const char* name) { return inputs.at(name).device; };
  const ImageGroup group = images(table("image"));
  const Tokens& tokens = vit().forward(ctx, {&group, 1}, decoder_.first_block(), *state.encoder);
  decoder_.forward(ctx, tokens.of_one_size(),
                   {.sources = table("place_sources"),
                    .kept = table("place_of_token"),
                    .masked = table("masked_places")},
                   pixels, state.decoder);
}

void Mae::make_targets(nn::Context& ctx, const Inputs& inputs, View targets, State& state) const {
  device::Arena::Scope scope(ctx.arena);
  const EncoderOptions& size = options_.vit().size;
  const int64_t width = options_.pixels(), patches = ctx.batch * options_.patches(),
                rows = ctx.batch * options_.masked();
  const View all = ctx.arena.temporary(patches * width);
  ctx.run(kernels::Patchify{.patches = all,
                            .image = inputs.at("image").device,
                            .batch = ctx.batch,
                            .height = options_.height(),
                            .width = options_.width(),
                            .patch = size.patch,
                            .patch_width = size.patch_columns(),
                            .range = range_});
  const bool plain = !options_.normalize_pixels;
  const View chosen = plain ? targets : ctx.arena.temporary(rows * width);
  ctx.run(kernels::GatherRows{.y = chosen,
                              .x = all,
                              .index = inputs.at("masked_patches").device,
                              .rows = rows,
                              .width = width,
                              .source_rows = patches});
  if (plain) return;
  ctx.run(kernels::LayerNormForward{.y = targets,
                                    .mean = ctx.arena.temporary(rows),
                                    .rstd = ctx.arena.temporary(rows),
                                    .x = chosen,
                                    .scale = state.scale_of_pixels,
                                    .rows = rows,
                                    .columns = width,
                                    .eps = float(kPixelEpsilon * share_of_variance(width))});
}

void Mae::backward(nn::Context& ctx, View d_pixels, State& state) const {
  device::Arena::Scope scope(ctx.arena);
  const View d = vit().make_gradient(ctx, *state.encoder).of_one_size();
  decoder_.backward(ctx, d_pixels, d, vit().last_block(), state.decoder);
  vit().backward(ctx, *state.encoder);
}

void Mae::forward_backward(nn::Context& ctx, const Inputs& inputs, int64_t global_batch, View sums,
                           State& state) const {
  place(ctx, inputs, state);
  const int64_t masked = options_.masked(), rows = ctx.batch * masked, width = options_.pixels();
  ctx.repeat({ctx.batch}, [&] {
    device::Arena::Scope scope(ctx.arena);
    const View pixels = ctx.arena.temporary(rows * width), losses = ctx.arena.temporary(rows),
               loss = ctx.arena.temporary(ctx.batch);
    predict(ctx, inputs, pixels, state);
    {
      device::Arena::Scope of_targets(ctx.arena);
      const View targets = ctx.arena.temporary(rows * width);
      make_targets(ctx, inputs, targets, state);
      ctx.run(kernels::TargetXent{.logits = pixels,
                                  .targets = targets,
                                  .loss = losses,
                                  .rows = rows,
                                  .columns = width,
                                  .kind = kernels::ClassLoss::squared,
                                  .scale = float(1 / double(global_batch * masked)),
                                  .loss_scale = ctx.loss_scale});
    }
    ctx.run(kernels::TokenMeanForward{
        .y = loss, .x = losses, .batch = ctx.batch, .rows = masked, .width = 1});
    backward(ctx, pixels, state);
    ctx.run(kernels::ExampleSums{
        .sums = sums, .values = loss, .batch = ctx.batch, .columns = 1, .slices = ctx.slices});
  });
  ctx.arena.pop_low(state.start);
}

std::unique_ptr<TrainPass> Mae::make_train_pass() const { return std::make_unique<MaePass>(*this); }

}  // namespace models
