// SPDX-License-Identifier: Apache-2.0
// A trunk and a chain of heads: what turns the views of examples into embeddings. Models that learn
// from embeddings share it, and a teacher runs the same network on other weights.
//
// Parameters of the first head are named "head/...", of the second head "head1/...".
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "models/heads/head.hpp"
#include "models/trunks/pooled_trunk.hpp"

namespace models {

// The views of an example: groups[i] of size image_size[i].
struct ViewOptions {
  std::vector<int64_t> groups = {2}, image_size = {224};
  void bind(config::Table& t);

  int64_t count() const;  // views of an example
  // Returns the ops of preprocessing that make such views.
  std::string ops() const;
  // Returns the name of a group's field, the same in the data and among inputs: "image", "image1".
  static std::string field(size_t group);
  int64_t pixels(size_t group) const { return image_size[group] * image_size[group] * 3; }
};

// Keys of [model] that all kinds of embedding models have.
struct EmbeddingOptions : config::Table::Variant {
  ViewOptions views;
  TrunkOptions trunk;
  std::vector<HeadOptions> heads;
  void bind(config::Table& t) override;

  // Returns the rows of an example that the loss reads: one for each view, unless heads join views.
  int64_t rows_of_example() const;
  // Throws Error(Exit::config) with the last head in front of `problem`.
  [[noreturn]] void refuse_last_head(const std::string& problem) const;
};

class EmbeddingNetwork {
 public:
  EmbeddingNetwork(const EmbeddingOptions& options, Recompute recompute, ParameterList& list);

  // The state of one pass.
  struct Pass {
    PooledTrunk::Pass encoder;
    std::vector<std::unique_ptr<Head::Pass>> heads;
    device::Arena::Mark start{};
    int64_t rows = 0;
  };
  Pass make_pass() const;

  // Computes the outputs of the last head, each f32 [examples, views / joins(), width]. ctx.keep:
  // backward follows. Otherwise the arena is left as it was.
  void forward(nn::Context& ctx, std::span<const ImageGroup> groups, std::span<const View> outputs,
               Pass& pass) const;
  // Computes the gradients of all parameters from the gradients of the outputs. A gradient that is
  // none counts as zero.
  void backward(nn::Context& ctx, std::span<const View> gradients, Pass& pass) const;

  const PooledTrunk& encoder() const { return encoder_; }
  Trunk& trunk() { return encoder_.trunk(); }
  const Trunk& trunk() const { return encoder_.trunk(); }
  // Returns the last head, whose outputs the loss reads.
  const Head& head() const { return *heads_.back(); }
  std::vector<int64_t> widths() const { return heads_.back()->widths(); }
  // Returns the number of consecutive views that heads join.
  int64_t joins() const;
  std::vector<int> blocks() const;  // of trunk and heads
  // Returns the FLOPs of the products of an example's views.
  int64_t forward_flops(std::span<const ImageGroup> groups) const;

 private:
  PooledTrunk encoder_;
  std::vector<std::unique_ptr<Head>> heads_;
  std::vector<int64_t> in_;  // width of each head's input
};

}  // namespace models
