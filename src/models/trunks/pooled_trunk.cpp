// SPDX-License-Identifier: Apache-2.0
#include "models/trunks/pooled_trunk.hpp"

namespace models {

namespace {

PoolingConfig pooling_of(const TrunkKeys& keys, bool trains_vectors) {
  PoolingConfig config = keys.pooling();
  if (!trains_vectors) config.norm.clear();
  return config;
}

}  // namespace

PooledTrunk::PooledTrunk(const TrunkKeys& keys, int64_t height, int64_t width, Recompute recompute,
                         ParameterList& list, bool trains_vectors)
    : trunk_(keys.make(height, width, recompute, list)),
      pooling_(pooling_of(keys, trains_vectors), trunk_->width(), recompute, list) {}

void PooledTrunk::place(nn::Context& ctx, std::span<const ImageGroup> groups, Pass& pass) const {
  trunk_->place(ctx, groups, *pass.trunk);
  pooling_.place(ctx, pass.trunk->tokens, pass.pooling);
}

View PooledTrunk::forward(nn::Context& ctx, std::span<const ImageGroup> groups, int next_block,
                          Pass& pass) const {
  Trunk::Pass& trunk = *pass.trunk;
  const Tokens& tokens =
      trunk_->forward(ctx, groups, pooling_.has_block() ? pooling_.block() : next_block, trunk);
  const View features = pooling_.forward(ctx, tokens, next_block, pass.pooling);
  if (!trunk.read_tap) return features;
  for (const std::string& tap : trunk_->pooled_taps()) {
    if (!trunk.wants(tap)) continue;
    CHECK(groups.size() == 1, "taps of images of several sizes");
    trunk.read_tap({.tap = tap,
                    .group = 0,
                    .images = ctx.batch * groups.front().per_example,
                    .grid_height = 1,
                    .grid_width = 1,
                    .channels = width(),
                    .values = features});
  }
  return features;
}

void PooledTrunk::backward(nn::Context& ctx, View d, Pass& pass) const {
  device::Arena::Scope scope(ctx.arena);
  const Tokens& d_tokens = trunk_->make_gradient(ctx, *pass.trunk);
  pooling_.backward(ctx, d, d_tokens, trunk_->last_block(), pass.pooling);
  trunk_->backward(ctx, *pass.trunk);
}

int64_t PooledTrunk::forward_flops(std::span<const ImageGroup> groups) const {
  int64_t flops = trunk_->forward_flops(groups);
  for (const ImageGroup& g : groups)
    flops += g.per_example * pooling_.forward_flops(trunk_->grid(g.height, g.width).count());
  return flops;
}

}  // namespace models
