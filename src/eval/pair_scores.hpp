// SPDX-License-Identifier: Apache-2.0
// Parts that evaluators share which compare images with texts by the likelihood of the text.
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

// Binds a list of numbers K, each at least 1 and there once.
void bind_k(config::Table& t, std::vector<int64_t>& k, std::string_view doc);

// Turns texts into ids as the set's preprocessing makes its field "labels". Error(Exit::data) if
// nothing makes that field from text, or if a text has too many tokens.
models::TextList tokenized(const data::Dataset& set, const std::vector<std::string>& texts);

// Scores every image of the set against all texts. `take` gets the batch, the row of an image in
// it, its position, and its scores [texts.count()]; images of this rank come in the order of
// positions, without padding. It adds the image to the journal, and `restore` gets the images that
// the journal has. Returns false if the run must stop.
using TakeScores = std::function<void(const data::Batch& batch, int64_t row, int64_t position,
                                      const double* scores)>;
bool score_pairs(const Context& context, const models::TextList& texts,
                 const Journal::Take& restore, const TakeScores& take);

// The scores of this rank's images.
struct PairScores {
  int64_t texts = 0;
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

// Returns how many of n scores come before number i: larger ones, and equal ones in front of it.
// NaN if any score is NaN, so that a broken model has no rank.
double rank_of(const double* scores, int64_t n, int64_t i);
// Returns the share of ranks below k; NaN if any is NaN.
double recall(const double* ranks, int64_t n, int64_t k);

std::unique_ptr<models::ForwardPass> make_pair_pass(const models::Model& model);

}  // namespace eval
