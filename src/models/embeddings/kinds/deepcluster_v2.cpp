// SPDX-License-Identifier: Apache-2.0
// DeepCluster-v2 (ssl.md 3.8): views of an image find its cluster, which k-means of embeddings of
// all images gives at the start of each epoch.
#include "models/embeddings/embedding_kind.hpp"

namespace models {
namespace {

struct DeepclusterOptions : EmbeddingOptions {
  DeepclusterLossOptions loss;
  void bind(config::Table& t) override {
    EmbeddingOptions::bind(t);
    t.table("loss", loss, "the loss of the embeddings, and the clusters");
    check_views(t, "loss.memory_views", loss.memory_views, rows_of_example());
  }
  EmbeddingParts parts(const EmbeddingNetwork& network, ParameterList& list) const {
    need_one_output(*this, network);
    return {.loss = make_deepcluster_loss(loss, network.widths().front(), list),
            .loss_doc =
                "cross-entropy of finding an image's clusters; 0 in the first epoch, which "
                "fills the memory",
            .student_views = {},
            .teacher = {}};
  }
};

}  // namespace

Registered deepcluster_v2_row() {
  return embedding_row<DeepclusterOptions>(
      "deepcluster_v2", "views of an image find its cluster among those of a memory of all images");
}

}  // namespace models
