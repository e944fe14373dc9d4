// SPDX-License-Identifier: Apache-2.0
#include "models/embeddings/embedding_kind.hpp"

#include <fmt/format.h>

namespace models {

void check_views(config::Table& t, const char* name, const std::vector<int64_t>& views,
                 int64_t available) {
  for (const int64_t view : views)
    if (view >= available)
      t.error(name, fmt::format("view {} is not among the {} that model.views makes of the first "
                                "size; views are counted from 0",
                                view, available));
}

void bind_made_classes(config::Table& t, const char* key, int64_t& classes, const char* doc) {
  t.key(key, classes, doc).min(2).max(1 << 24).on_resume(config::OnResume::never);
}

EmbeddingParts find_label(const EmbeddingOptions& options, const EmbeddingNetwork& network,
                          const MadeLabel& label) {
  need_one_output(options, network);
  if (network.widths().front() != label.classes)
    options.refuse_last_head(fmt::format(
        "gives {} values, but {} = {} needs as many; change the width of its last layer",
        network.widths().front(), label.key, label.classes));
  return {.loss = make_label_loss(label),
          .loss_doc = "cross-entropy of the label that preprocessing made",
          .student_views = {},
          .teacher = {}};
}

EmbeddingParts find_in_bank(const EmbeddingOptions& options, const NceLossOptions& loss,
                            const EmbeddingNetwork& network, ParameterList& list) {
  const size_t outputs = network.widths().size();
  if (outputs != loss.loss_weights.size())
    base::fail(base::Exit::config,
               "model.loss.loss_weights: has {} numbers for {} outputs of the head; give one "
               "for each",
               loss.loss_weights.size(), outputs);
  for (const int64_t width : network.widths())
    if (width != network.widths().front())
      options.refuse_last_head(
          fmt::format("has outputs of {} values, but all must be as wide as the memory's rows; end "
                      "with a head of kind mlp",
                      fmt::join(network.widths(), ", ")));
  return {.loss = make_nce_loss(loss, network.widths().front(), list),
          .loss_doc = "loss of telling an image from random rows of the memory bank",
          .student_views = {},
          .teacher = {}};
}

void need_one_output(const EmbeddingOptions& options, const EmbeddingNetwork& network) {
  const std::vector<int64_t> widths = network.widths();
  if (widths.size() == 1) return;
  options.refuse_last_head(
      fmt::format("has {} outputs, of {} values, but this loss reads only one; end with a head of "
                  "kind mlp or dino",
                  widths.size(), fmt::join(widths, ", ")));
}

}  // namespace models
