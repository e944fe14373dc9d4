// SPDX-License-Identifier: Apache-2.0
// The decoder of masked patches (mae.md 3): layers of a ViT over all places of an image, with the
// encoder's tokens at those that were kept and a learned token at the others. Parameters lie below
// "decoder/".
#pragma once

#include "models/masked/mae_options.hpp"

namespace models {

class PixelDecoder {
 public:
  // tokens_width: of the encoder's tokens.
  PixelDecoder(const MaeOptions& options, int64_t tokens_width, Recompute recompute,
               ParameterList& list);

  // i32 tables. The places of an image are its class token and all patches.
  struct Tables {
    View sources;  // [examples, places]: the row of the embedded tokens; behind them: a mask's
    View kept;     // [examples, 1 + kept]: the places of the encoder's tokens
    View masked;   // [examples, masked]: the places that are predicted
  };
  // The state of one pass, from place to the end of its backward pass.
  struct Pass {
    Tables tables;
    View positions;        // [places, width]
    View encoded, masked;  // what the first and the last product read
    device::Arena::Mark start{};
    VitLayers::Pass layers;
  };

  // Copies the host's table to where ops read it, until the arena is popped.
  void place(nn::Context& ctx, Pass& pass) const { pass.positions = ctx.table(true, table_); }
  // Writes the predictions of the masked patches to pixels, f32 [examples, masked, pixels].
  // encoded: [examples, 1 + kept, width].
  void forward(nn::Context& ctx, View encoded, const Tables& tables, View pixels, Pass& pass) const;
  // Turns the gradient of the predictions into that of `encoded`. before: the block that runs
  // backward next.
  void backward(nn::Context& ctx, View d_pixels, View d_encoded, int before, Pass& pass) const;

  // Returns [patches, width].
  std::vector<float> patch_positions() const { return {table_.begin() + width_, table_.end()}; }
  int first_block() const { return embed_block_; }
  int64_t forward_flops() const;

 private:
  nn::Sequences sequences(const nn::Context& ctx) const { return {places_, ctx.batch * places_}; }
  int64_t masked_of(const nn::Context& ctx) const { return ctx.batch * masked_; }
  void embed(nn::Context& ctx, const Pass& pass, View x) const;
  void backward_embed(nn::Context& ctx, View d, View d_encoded, const Pass& pass) const;

  int64_t width_, places_, kept_, masked_;
  int embed_block_ = -1, mask_token_ = -1, head_block_ = -1;
  std::vector<float> table_;  // of positions; the class token has zeros
  nn::Linear embed_, head_;
  VitLayers layers_;
};

}  // namespace models
