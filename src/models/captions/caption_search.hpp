// SPDX-License-Identifier: Apache-2.0
// Chooses the tokens of captions from logits, step by step: greedy, beam search, or sampling
// (captioner.hpp). It knows no model and works on the host.
#pragma once

#include <cstdint>
#include <vector>

#include "base/random.hpp"
#include "models/captioner.hpp"
#include "models/decoders/caption_steps.hpp"

namespace models {

// Beam search keeps `beams` places for an image. At each step the hypotheses at its places are
// continued by all tokens, and the most likely continuations take the places. A hypothesis that has
// ended keeps its place. The search of an image is over if all its hypotheses have ended, or if no
// live one can reach the best score of the ended ones.
//
// The continuation that greedy chooses takes the last place if it is not among the most likely
// ones. With one place the search is greedy.
class CaptionSearch {
 public:
  // Each image has room for options.places() rows; row r of a step writes cache row step * slots +
  // r. first_position: global position of image 0. Captions end after `length` tokens.
  CaptionSearch(const DecodeOptions& options, int64_t images, int64_t first_position, int64_t slots,
                int64_t length);

  bool done() const { return rows_.ids.empty(); }
  int64_t step() const { return step_; }
  const CaptionSteps::Rows& rows() const { return rows_; }  // of the next step
  // logits: [rows, vocabulary]. first_nll: [rows], the negative log-likelihoods of id 0.
  void advance(const float* logits, const float* first_nll, int64_t vocabulary);
  // Returns the caption with the best score of every image, once the search is done.
  std::vector<Caption> captions() const;
  // Returns the score of a caption with n tokens (captioner.hpp).
  static double score(const DecodeOptions& options, double log_likelihood, int64_t n);

 private:
  struct Hypothesis {
    std::vector<int32_t> ids;   // without the end
    std::vector<int32_t> past;  // cache rows of its positions
    double log_likelihood = 0;
    bool greedy = false;  // greedy chooses the same tokens
  };
  struct Ended {
    Caption caption;
    double score = 0;
  };
  struct Image {
    std::vector<Hypothesis> live;  // the most likely one first
    std::vector<Ended> ended;
  };
  struct Candidate {
    double log_likelihood;
    size_t row;  // among the live hypotheses of the image
    int32_t id;
    bool greedy;
  };
  void list_rows();
  void continue_image(Image& image, const std::vector<Candidate>& chosen);
  // Lists the continuations of a hypothesis by its `count` most likely tokens.
  void list_candidates(const Hypothesis& from, size_t row, const float* logits, double first_nll,
                       int64_t vocabulary, int64_t count, std::vector<Candidate>& out) const;
  Candidate sample(const Hypothesis& from, int64_t position, const float* logits, double first_nll,
                   int64_t vocabulary) const;

  DecodeOptions options_;
  int64_t first_position_, slots_, length_, step_ = 0;
  std::vector<Image> images_;
  CaptionSteps::Rows rows_;
};

}  // namespace models
