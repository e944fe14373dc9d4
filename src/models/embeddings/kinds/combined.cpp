// SPDX-License-Identifier: Apache-2.0
// A model whose loss is a weighted sum of losses that the deck names: [[model.loss]].
#include <algorithm>

#include "models/embeddings/embedding_kind.hpp"

namespace models {
namespace {

struct CombinedOptions : EmbeddingOptions {
  std::vector<LossTermOptions> losses;
  void bind(config::Table& t) override {
    EmbeddingOptions::bind(t);
    t.list("loss", losses, "a loss of the embeddings, with its weight in the sum");
    if (losses.empty()) t.error("loss", "missing; add a [[model.loss]] table with a kind");
    std::vector<std::string> names = {"loss"};
    for (const LossTermOptions& term : losses) {
      if (std::ranges::count(names, term.label()) > 0)
        t.error("loss", fmt::format("two measures are named \"{}\"; give this one another name",
                                    term.label()));
      names.push_back(term.label());
      if (const std::string problem = term.views_problem(rows_of_example()); !problem.empty())
        t.error("views", problem);
    }
  }
  EmbeddingParts parts(const EmbeddingNetwork& network, ParameterList&) const {
    need_one_output(*this, network);
    return {.loss = make_combined_loss(losses),
            .loss_doc = "weighted sum of the losses that [[model.loss]] names",
            .loss_unit = "1",
            .student_views = {},
            .teacher = {}};
  }
};

}  // namespace

Registered combined_row() {
  return embedding_row<CombinedOptions>(
      "combined", "a weighted sum of losses of the embeddings of views, without labels");
}

}  // namespace models
