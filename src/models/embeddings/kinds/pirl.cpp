// SPDX-License-Identifier: Apache-2.0
// PIRL (ssl.md 3.7): a loss distinguishes an image and its shuffled patches from other images by a
// memory bank, which keeps the image's embedding.
#include "models/embeddings/embedding_kind.hpp"
#include "models/heads/head_kinds.hpp"

namespace models {
namespace {

struct PirlOptions : EmbeddingOptions {
  NceLossOptions loss;
  PirlOptions() {
    views = {.groups = {1, 9}, .image_size = {224, 64}};
    loss.negatives = 32000;
    loss.loss_weights = {0.5, 0.5};
    loss.update_output = 1;
  }
  void bind(config::Table& t) override {
    EmbeddingOptions::bind(t);
    t.table("loss", loss, "the loss of the embeddings: of the patches, and of the image");
    const auto* head =
        heads.empty() ? nullptr : dynamic_cast<const PatchHeadOptions*>(heads.back().options.get());
    if (heads.size() != 1 || !head || head->patches + 1 != views.count())
      t.error("views", fmt::format("make {} of an image, which are the image and its patches; use "
                                   "one head, of kind image_and_patches with patches = {}",
                                   views.count(), views.count() - 1));
  }
  EmbeddingParts parts(const EmbeddingNetwork& network, ParameterList& list) const {
    EmbeddingParts parts = find_in_bank(*this, loss, network, list);
    parts.made_by = fmt::format(
        "multi_crop([1, 1], [{}, 255]) | patches(key=\"image1\") | shuffle_patches(0, "
        "key=\"image1\")",
        views.image_size[0]);
    return parts;
  }
};

}  // namespace

Registered pirl_row() {
  return embedding_row<PirlOptions>(
      "pirl", "the loss distinguishes an image and its patches from other images in a memory bank");
}

}  // namespace models
