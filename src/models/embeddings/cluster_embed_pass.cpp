// SPDX-License-Identifier: Apache-2.0
#include "models/embeddings/cluster_embed_pass.hpp"

#include <algorithm>

#include "models/trunks/embed_pass.hpp"

namespace models {
namespace {

std::string cluster_tap(size_t set) { return fmt::format("cluster{}", set); }

// Writes the number of the largest score of each row; among equals, of the first one.
void write_largest(const float* scores, int64_t rows, int64_t columns, float* to) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = scores + r * columns;
    to[r] = float(std::max_element(row, row + columns) - row);
  }
}

class ClusterEmbedPass : public EmbedPass {
 public:
  ClusterEmbedPass(const EmbeddingModel& model, const InputSpec& image, int64_t size,
                   const std::vector<std::string>& names)
      : model_(model),
        image_(image),
        group_{.images = {}, .height = size, .width = size},
        taps_(chosen_taps(model.taps(), names)),
        state_(model.network().make_pass()) {
    for (const Tap& tap : taps_)
      if (!tap.whole) state_.encoder.trunk->taps.push_back(tap.name);
  }

  std::string name() const override { return embed_pass_name(taps_); }
  std::vector<InputSpec> inputs() const override { return {image_}; }
  const std::vector<Tap>& taps() const override { return taps_; }

  void run(nn::Context& ctx, const Inputs& inputs, const std::vector<float*>& features) override {
    CHECK(!ctx.keep);
    const bool planned = ctx.queue.kind() == device::Kind::plan;
    CHECK(planned || features.size() == taps_.size());
    state_.encoder.trunk->read_tap = [&](const Trunk::TapValues& values) {
      for (size_t t = 0; t < taps_.size(); ++t)
        if (taps_[t].name == values.tap)
          copy_features(ctx, values.values, planned ? nullptr : features[t]);
    };
    device::Arena::Scope scope(ctx.arena);
    std::vector<View> outputs;
    for (const int64_t width : model_.network().widths())
      outputs.push_back(ctx.arena.temporary(ctx.batch * width));
    group_.images = inputs.at(image_.name).device;
    model_.network().forward(ctx, {&group_, 1}, outputs, state_);
    state_.encoder.trunk->read_tap = {};
    const std::vector<int64_t> clusters = model_.loss().clusters();
    for (size_t t = 0; t < taps_.size(); ++t)
      for (size_t set = 0; set < clusters.size(); ++set) {
        if (taps_[t].name != cluster_tap(set)) continue;
        device::Arena::Scope set_scope(ctx.arena);
        const View scores = model_.loss().cluster_scores(ctx, set, outputs);
        if (planned) continue;
        device::read_on_host(scores, ctx.queue, [&](View v) {
          write_largest(v.f32(), ctx.batch, clusters[set], features[t]);
        });
      }
  }

 private:
  const EmbeddingModel& model_;
  InputSpec image_;
  ImageGroup group_;
  std::vector<Tap> taps_;
  EmbeddingNetwork::Pass state_;
};

}  // namespace

std::vector<Tap> cluster_taps(const EmbeddingModel& model) {
  std::vector<Tap> taps;
  if (model.network().joins() > 1) return taps;
  const std::vector<int64_t> clusters = model.loss().clusters();
  for (size_t set = 0; set < clusters.size(); ++set)
    taps.push_back({.name = cluster_tap(set),
                    .shape = {1},
                    .doc = fmt::format("the image's cluster among {}", clusters[set]),
                    .whole = true});
  return taps;
}

std::unique_ptr<EmbedPass> make_cluster_embed_pass(const EmbeddingModel& model,
                                                   const InputSpec& image, int64_t size,
                                                   const std::vector<std::string>& taps) {
  return std::make_unique<ClusterEmbedPass>(model, image, size, taps);
}

}  // namespace models
