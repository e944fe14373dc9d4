// SPDX-License-Identifier: Apache-2.0
// A ViT and a pooling of its tokens, as a trunk. Parameters have the names and shapes of
// big_vision's ViT, below "encoder/".
#pragma once

#include "models/pooling.hpp"
#include "models/trunk.hpp"
#include "models/vit_options.hpp"

namespace models {

inline constexpr std::pair<const char*, Pool> kPoolNames[] = {
    {"gap", Pool::gap}, {"map", Pool::map}, {"tok", Pool::tok}};

// Keys of trunk.kind = "vit".
struct VitTrunkOptions : TrunkKeys {
  EncoderOptions size;
  bool learned_positions = true;  // posemb
  Pool pool = Pool::gap;
  void bind(config::Table& t) override;
  std::string image_problem(int64_t height, int64_t width) const override;
  std::unique_ptr<Trunk> make(int64_t height, int64_t width, Recompute recompute,
                              ParameterList& list) const override;
};

// Groups may have several sizes if a class token is pooled: position tables are resampled.
class VitTrunk : public Trunk {
 public:
  VitTrunk(const VitTrunkOptions& options, int64_t height, int64_t width, Recompute recompute,
           ParameterList& list);

  struct VitPass : Pass {
    Vit::Pass encoder;
    Pooling::Pass pooling;
  };
  std::unique_ptr<Pass> make_pass() const override { return std::make_unique<VitPass>(); }
  void place(nn::Context& ctx, std::span<const ImageGroup> groups, Pass& pass) const override;
  View forward(nn::Context& ctx, std::span<const ImageGroup> groups, int next_block,
               Pass& pass) const override;
  void backward(nn::Context& ctx, View d, Pass& pass) const override;
  int64_t width() const override { return encoder_.config().width; }
  int first_block() const override { return encoder_.first_block(); }
  int last_block() const override {
    return pooling_.has_block() ? pooling_.block() : encoder_.last_block();
  }
  std::vector<Tap> taps(int64_t height, int64_t width) const override;
  std::string feature_tap() const override { return "pre_logits"; }
  void take_bytes(const kernels::PixelRange& range) override { encoder_.take_bytes(range); }
  std::vector<std::string> patch_tables() const override;
  std::string changing_arguments() const override;
  int64_t forward_flops(std::span<const ImageGroup> groups) const override;
  int64_t input_flops(std::span<const ImageGroup> groups) const override;

 private:
  int64_t patches_of(const ImageGroup& group) const;
  nn::Context of_images(const nn::Context& ctx, std::span<const ImageGroup> groups) const;
  void read(nn::Context& ctx, const VitPass& pass, const std::string& tap, View values) const;

  Vit encoder_;
  Pooling pooling_;
};

}  // namespace models
