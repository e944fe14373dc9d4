// SPDX-License-Identifier: Apache-2.0
// The embed pass of models that own a trunk.
#pragma once

#include "models/embedder.hpp"
#include "models/trunks/pooled_trunk.hpp"

namespace models {

// Copies values of any type to the host as f32, unless `to` is null.
void copy_features(nn::Context& ctx, View values, float* to);
// Returns the name of the pass that reads these taps.
std::string embed_pass_name(const std::vector<Tap>& taps);

// Reads taps of the trunk on images [height, width, 3] of the model's input `image`. The encoder
// must outlive the pass.
std::unique_ptr<EmbedPass> make_trunk_embed_pass(const PooledTrunk& encoder, const InputSpec& image,
                                                 int64_t height, int64_t width,
                                                 const std::vector<std::string>& taps);

}  // namespace models
