// SPDX-License-Identifier: Apache-2.0
// The embed pass of models whose encoder is a ViT without a pooling of its own. Its taps are
//   pre_logits     [width]          the mean of the normalised tokens, or what a trunk pools
//   encoded        [tokens, width]  the normalised tokens (cappa.md 1.4, points 5 and 6)
//   blockNN        [tokens, width]  the output of block NN, counted from 0: block00, block01, ...
//   blockNN_mean   [width]          its mean over the tokens
#pragma once

#include "models/embedder.hpp"
#include "models/vit.hpp"

namespace models {

// The parts of a model that an embed pass runs. They must outlive it.
struct EmbedParts {
  const Vit& encoder;
  InputSpec image;  // the model's input buffer of images
};

std::vector<Tap> vit_taps(const VitConfig& config);
std::string block_tap(int64_t block);  // "block03"
std::string mean_tap(int64_t block);   // "block03_mean"
// Copies values of any type to the host as f32, unless `to` is null.
void copy_features(nn::Context& ctx, View values, float* to);
std::unique_ptr<EmbedPass> make_vit_embed_pass(const EmbedParts& parts,
                                               const std::vector<std::string>& taps);

}  // namespace models
