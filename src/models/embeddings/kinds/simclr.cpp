// SPDX-License-Identifier: Apache-2.0
// SimCLR (ssl.md 3.1): the views of an image attract each other and repel those of all other images
// of the global batch.
#include "models/embeddings/embedding_kind.hpp"

namespace models {
namespace {

struct SimclrOptions : EmbeddingOptions {
  SimclrLossOptions loss;
  void bind(config::Table& t) override {
    EmbeddingOptions::bind(t);
    t.table("loss", loss, "the loss of the embeddings");
    if (rows_of_example() < 2) t.error("views", "one view has no other view to attract; give two");
  }
  EmbeddingParts parts(const EmbeddingNetwork& network, ParameterList&) const {
    need_one_output(*this, network);
    return {.loss = make_simclr_loss(loss),
            .loss_doc = "contrastive loss of a view against all views of the global batch",
            .student_views = {},
            .teacher = {}};
  }
};

}  // namespace

Registered simclr_row() {
  return embedding_row<SimclrOptions>(
      "simclr", "views of an image attract each other and repel those of other images");
}

}  // namespace models
