// SPDX-License-Identifier: Apache-2.0
// The embed pass of embedding models whose loss has clusters: taps of the trunk, and for each set
// of clusters a tap with the number of the cluster to which an image belongs.
#pragma once

#include "models/embeddings/embedding_model.hpp"

namespace models {

// Returns the taps cluster0, cluster1, ... of the model's loss; none if it has no clusters.
std::vector<Tap> cluster_taps(const EmbeddingModel& model);
// image: the input of single images of that size. `model` must outlive the pass.
std::unique_ptr<EmbedPass> make_cluster_embed_pass(const EmbeddingModel& model,
                                                   const InputSpec& image, int64_t size,
                                                   const std::vector<std::string>& taps);

}  // namespace models
