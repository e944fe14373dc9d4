// SPDX-License-Identifier: Apache-2.0
// The training pass of embedding models. It keeps the embeddings of all passes of a step, because
// the loss reads them together.
#pragma once

#include "models/embeddings/embedding_model.hpp"

namespace models {

// `model` must outlive the pass.
std::unique_ptr<TrainPass> make_embedding_pass(const EmbeddingModel& model);

}  // namespace models
