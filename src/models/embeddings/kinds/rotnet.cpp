// SPDX-License-Identifier: Apache-2.0
// RotNet: the network finds the angle by which op rotate turned an image (arXiv 1803.07728).
#include "models/embeddings/embedding_kind.hpp"

namespace models {
namespace {

struct RotnetOptions : EmbeddingOptions {
  int64_t angles = 4;
  RotnetOptions() { views = {.groups = {1}, .image_size = {224}}; }
  void bind(config::Table& t) override {
    EmbeddingOptions::bind(t);
    bind_made_classes(t, "angles", angles,
                      "angles of op rotate; the last head has a score for each");
    if (rows_of_example() != 1)
      t.error("views", fmt::format("make {} of an image, but op rotate turns one", views.count()));
  }
  EmbeddingParts parts(const EmbeddingNetwork& network, ParameterList&) const {
    return find_label(*this, network,
                      {.field = "rotation",
                       .classes = angles,
                       .key = "model.angles",
                       .made_by = fmt::format("rotate({})", angles)});
  }
};

}  // namespace

Registered rotnet_row() {
  return embedding_row<RotnetOptions>("rotnet", "the angle by which an image was turned is found");
}

}  // namespace models
