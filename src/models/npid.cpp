// SPDX-License-Identifier: Apache-2.0
// NPID (ssl.md 3.7): a loss distinguishes an image from random others by a memory bank with one row
// per image of the data set.
#include "models/embedding_kind.hpp"
#include "models/sample_count.hpp"

namespace models {
namespace {

struct NpidOptions : EmbeddingOptions, CountsSamples {
  NceLossOptions loss;
  NpidOptions() { views = {.groups = {1}, .image_size = {224}}; }
  void bind(config::Table& t) override {
    EmbeddingOptions::bind(t);
    t.table("loss", loss, "the loss of the embeddings");
    if (rows_of_example() != 1)
      t.error("views", fmt::format("are {} of an image; the memory bank takes one, or several that "
                                   "a head of kind siamese_concat_view joins",
                                   rows_of_example()));
  }
  int64_t& samples() override { return loss.samples; }
  EmbeddingParts parts(const EmbeddingNetwork& network, ParameterList& list) const {
    const size_t outputs = network.widths().size();
    if (outputs != loss.loss_weights.size())
      base::fail(base::Exit::config,
                 "model.loss.loss_weights: has {} numbers for {} outputs of the head; give one "
                 "for each",
                 loss.loss_weights.size(), outputs);
    for (const int64_t width : network.widths())
      if (width != network.widths().front())
        refuse_last_head(
            fmt::format("has outputs of {} values, and all must have the width of the "
                        "memory's rows; end with a head of kind mlp",
                        fmt::join(network.widths(), ", ")));
    return {.loss = make_nce_loss(loss, network.widths().front(), list),
            .loss_doc = "loss of telling an image from random rows of the memory bank",
            .student_views = {},
            .teacher = {}};
  }
};

}  // namespace

Registered npid_row() {
  return embedding_row<NpidOptions>("npid",
                                    "an image is told from the others by a memory bank of them");
}

}  // namespace models
