// SPDX-License-Identifier: Apache-2.0
// Jigsaw: the network finds the order in which op shuffle_patches put the patches of an image
// (arXiv 1603.09246). A head of kind siamese_concat_view joins the features of the patches.
#include "models/embeddings/embedding_kind.hpp"

namespace models {
namespace {

struct JigsawOptions : EmbeddingOptions {
  int64_t permutations = 2000;
  JigsawOptions() { views = {.groups = {9}, .image_size = {64}}; }
  void bind(config::Table& t) override {
    EmbeddingOptions::bind(t);
    bind_made_classes(t, "permutations", permutations,
                      "orders of op shuffle_patches; the last head has a score for each");
    if (views.groups.size() != 1 || rows_of_example() != 1)
      t.error(
          "views",
          fmt::format("make {} patches in {} groups, and heads join {} patches each into {} rows; "
                      "use one group and a head of kind siamese_concat_view with towers = {}",
                      views.count(), views.groups.size(),
                      views.count() / std::max<int64_t>(1, rows_of_example()), rows_of_example(),
                      views.count()));
  }
  EmbeddingParts parts(const EmbeddingNetwork& network, ParameterList&) const {
    EmbeddingParts parts =
        find_label(*this, network,
                   {.field = "permutation",
                    .classes = permutations,
                    .key = "model.permutations",
                    .made_by = fmt::format("patches | shuffle_patches({})", permutations)});
    parts.made_by = "patches";
    return parts;
  }
};

}  // namespace

Registered jigsaw_row() {
  return embedding_row<JigsawOptions>(
      "jigsaw", "predicts the order into which op shuffle_patches put the patches of an image");
}

}  // namespace models
