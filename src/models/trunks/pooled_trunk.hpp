// SPDX-License-Identifier: Apache-2.0
// A trunk and a pooling of its tokens: the part of a model that turns images into vectors, the
// features, which heads and probes read.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/trunks/trunk.hpp"

namespace models {

class PooledTrunk {
 public:
  // height, width: size of the images of group 0. trains_vectors: false if the model reads only
  // tokens. The pooling then has no norm, because nothing would train it.
  PooledTrunk(const TrunkKeys& keys, int64_t height, int64_t width, Recompute recompute,
              ParameterList& list, bool trains_vectors = true);

  // The state of one pass, from place() to the end of its backward pass.
  struct Pass {
    std::unique_ptr<Trunk::Pass> trunk;
    Pooling::Pass pooling;
  };
  Pass make_pass() const { return {trunk_->make_pass(), {}}; }

  // These three call the functions of the same names of the trunk and of the pooling. forward
  // returns the features f32 [examples, views, width], in the arena, with the views of group 0
  // first. backward takes the features' gradient d, which it uses as workspace.
  void place(nn::Context& ctx, std::span<const ImageGroup> groups, Pass& pass) const;
  View forward(nn::Context& ctx, std::span<const ImageGroup> groups, int next_block,
               Pass& pass) const;
  void backward(nn::Context& ctx, View d, Pass& pass) const;

  Trunk& trunk() { return *trunk_; }
  const Trunk& trunk() const { return *trunk_; }
  int64_t width() const { return trunk_->width(); }
  int first_block() const { return trunk_->first_block(); }
  int last_block() const { return pooling_.has_block() ? pooling_.block() : trunk_->last_block(); }
  // Returns the name of the tap that holds the features.
  std::string feature_tap() const { return trunk_->pooled_taps().back(); }
  // Returns the FLOPs of all products of an example with these groups of views.
  int64_t forward_flops(std::span<const ImageGroup> groups) const;

 private:
  std::unique_ptr<Trunk> trunk_;
  Pooling pooling_;
};

}  // namespace models
