// SPDX-License-Identifier: Apache-2.0
// Checks of the sections that the modes extract and predict read.
#include "base/text.hpp"
#include "eval/predictor.hpp"
#include "models/embedder.hpp"
#include "train/recipe.hpp"

namespace train {

void Recipe::check_extract(config::Deck& deck, const models::Model& made) const {
  if (extract.data.empty()) return;
  const auto* embedder = dynamic_cast<const models::Embedder*>(&made);
  if (!embedder)
    return deck.error("extract.data",
                      fmt::format("needs a model that can turn images into features, and "
                                  "model.kind = \"{}\" cannot",
                                  model.kind));
  try {
    embedder->make_embed_pass(extract.taps);
  } catch (const base::Error& e) {
    deck.error("extract.taps", e.what());
  }
}

// A model without the capability is reported at eval.NAME.kind.
void Recipe::check_predict(config::Deck& deck) const {
  const std::string& name = predict.evaluator;
  if (name.empty()) {
    if (!predict.data.empty())
      deck.error("predict.evaluator", "missing; name an [eval.NAME] whose classes are predicted");
    return;
  }
  const auto found = evals.find(name);
  if (found == evals.end()) {
    std::vector<std::string> names;
    for (const auto& [known, e] : evals) names.push_back(known);
    return deck.error("predict.evaluator",
                      fmt::format("there is no [eval.{}]; {}", name,
                                  names.empty() ? "the deck has none"
                                                : "the deck has " + base::join(names, ", ")));
  }
  const eval::Predicts* predicts = eval::row_of(found->second).predicts;
  if (!predicts)
    return deck.error("predict.evaluator",
                      fmt::format("eval.{}.kind = \"{}\" predicts no class; name one of kind "
                                  "scoring or classification",
                                  name, found->second.kind));
  for (const auto& [key, problem] : predicts->problems(*found->second.options))
    deck.error(fmt::format("eval.{}.{}", name, key), problem);
}

}  // namespace train
