// SPDX-License-Identifier: Apache-2.0
// MoCo (ssl.md 3.4): view 0 of an image finds view 1, as a slowly moving teacher sees it, among a
// queue of keys of earlier batches.
#include "models/embeddings/embedding_kind.hpp"

namespace models {
namespace {

struct MocoOptions : EmbeddingOptions {
  MocoLossOptions loss;
  double momentum = 0.999;
  bool shuffle = false;
  void bind(config::Table& t) override {
    EmbeddingOptions::bind(t);
    t.table("loss", loss, "the loss of the embeddings");
    t.key("momentum", momentum, "share of itself that the teacher keeps in each step")
        .min(0)
        .max(1);
    t.key("shuffle", shuffle,
          "the teacher sees the global batch in a random order, so that its batch norms have other "
          "groups of examples than the network's; needs groups smaller than the batch "
          "(model.trunk.group_examples) to matter, and no accumulation");
    if (views.groups.size() != 1 || views.count() != 2)
      t.error("views", "must be [2]: a query and its key");
  }
  EmbeddingParts parts(const EmbeddingNetwork& network, ParameterList& list) const {
    need_one_output(*this, network);
    return {.loss = make_moco_loss(loss, network.widths().front(), list),
            .loss_doc =
                "cross-entropy of choosing a query's own key among it and the keys of the queue",
            .student_views = {0},
            .teacher = TeacherPlan{.keep = [keep = momentum](int64_t, int64_t) { return keep; },
                                   .views = {1},
                                   .shuffles = shuffle}};
  }
};

}  // namespace

Registered moco_row() {
  return embedding_row<MocoOptions>(
      "moco", "a view finds another view's key among a queue of keys, made by a momentum encoder");
}

}  // namespace models
