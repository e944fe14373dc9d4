// SPDX-License-Identifier: Apache-2.0
// Barlow Twins (ssl.md 3.2): the features of two views are correlated, and different features are
// not.
#include "models/embeddings/embedding_kind.hpp"

namespace models {
namespace {

struct BarlowTwinsOptions : EmbeddingOptions {
  BarlowLossOptions loss;
  void bind(config::Table& t) override {
    EmbeddingOptions::bind(t);
    t.table("loss", loss, "the loss of the embeddings");
    if (rows_of_example() != 2)
      t.error("views",
              fmt::format("make {} of an image, but the loss compares two", rows_of_example()));
  }
  EmbeddingParts parts(const EmbeddingNetwork& network, ParameterList&) const {
    need_one_output(*this, network);
    return {.loss = make_barlow_loss(loss),
            .loss_doc = "distance of the correlations of features from the unit matrix",
            .loss_unit = "1",
            .student_views = {},
            .teacher = {}};
  }
};

}  // namespace

Registered barlow_twins_row() {
  return embedding_row<BarlowTwinsOptions>(
      "barlow_twins", "features of two views agree, and different features are not correlated");
}

}  // namespace models
