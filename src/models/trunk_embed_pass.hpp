// SPDX-License-Identifier: Apache-2.0
// The embed pass of models that own a trunk.
#pragma once

#include "models/embedder.hpp"
#include "models/trunk.hpp"

namespace models {

// Reads taps of the trunk on images [height, width, 3] of the model's input buffer `image`. The
// trunk must outlive the pass.
std::unique_ptr<EmbedPass> make_trunk_embed_pass(const Trunk& trunk, const InputSpec& image,
                                                 int64_t height, int64_t width,
                                                 const std::vector<std::string>& taps);

}  // namespace models
