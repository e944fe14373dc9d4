// SPDX-License-Identifier: Apache-2.0
// Shared parts of evaluators that compare images with texts: by the likelihood of the text, or by
// the cosine of two embeddings (models::PairScore).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "eval/evaluator.hpp"
#include "models/caption_scorer.hpp"

namespace eval {

// Keys that change scores before they are compared.
struct PairOptions {
  bool normalize_by_length = false, subtract_prior = false;
  void bind(config::Table& t);
};

// Binds a list of different numbers K, each at least 1.
void bind_k(config::Table& t, std::vector<int64_t>& k, std::string_view doc);

// Turns texts into ids as the set's preprocessing does for its field "labels". Error(Exit::data) if
// nothing makes that field from text, or if a text has too many tokens.
models::TextList tokenized(const data::Dataset& set, const std::vector<std::string>& texts);

// Scores every image of the set against all texts. `take` gets the batch, the row of an image in
// it, its position, and its scores (PairScorePass::columns). Images of this rank come in the order
// of positions, without padding. `take` adds the image to the journal, and `restore` gets the
// images that the journal has. Returns false if the run must stop.
using TakeScores = std::function<void(const data::Batch& batch, int64_t row, int64_t position,
                                      const double* scores)>;
bool score_pairs(const Context& context, const models::TextList& texts,
                 const Journal::Take& restore, const TakeScores& take);

// The scores of this rank's images.
struct PairScores {
  int64_t texts = 0;  // scores of an image: one for each text, or group of texts
  std::vector<int64_t> positions{};
  std::vector<double> scores{};  // [positions, texts]

  double* of(size_t image) { return scores.data() + image * size_t(texts); }
  void add(int64_t position, const double* of_texts) {
    positions.push_back(position);
    scores.insert(scores.end(), of_texts, of_texts + texts);
  }
};
// Divides the scores of each text by its number of tokens, then subtracts their mean over all
// images, as the options ask. All ranks must call it.
void adjust(const Context& context, const PairOptions& options, const models::TextList& texts,
            PairScores& scores);

// Returns how many of n scores come before score i: larger scores, and equal scores in front of it.
// NaN if any score is NaN, so that a broken model has no rank.
double rank_of(const double* scores, int64_t n, int64_t i);
// Returns the share of ranks below k; NaN if any is NaN.
double recall(const double* ranks, int64_t n, int64_t k);

// Makes the pass of a model that scores pairs; null for other models. Error(Exit::config) for
// options that the model's kind of score cannot have.
std::unique_ptr<models::ForwardPass> make_pair_pass(const models::Model& model,
                                                    const PairOptions& options);

}  // namespace eval
