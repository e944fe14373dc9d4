// SPDX-License-Identifier: Apache-2.0
// NPID (ssl.md 3.7): a loss distinguishes an image from random others by a memory bank with one row
// per image of the data set.
#include "models/embeddings/embedding_kind.hpp"
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
      t.error("views", fmt::format("make {} of an image, but the memory bank takes one; a head of "
                                   "kind siamese_concat_view can join several",
                                   rows_of_example()));
  }
  int64_t& samples() override { return loss.samples; }
  EmbeddingParts parts(const EmbeddingNetwork& network, ParameterList& list) const {
    return find_in_bank(*this, loss, network, list);
  }
};

}  // namespace

Registered npid_row() {
  return embedding_row<NpidOptions>(
      "npid", "the loss distinguishes an image from random others in a memory bank");
}

}  // namespace models
