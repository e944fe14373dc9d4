// SPDX-License-Identifier: Apache-2.0
// Classes by a weighted vote of the nearest neighbours (ssl.md 8, kNN), in double.
#pragma once

#include <cstdint>
#include <vector>

#include "eval/fits/least_squares.hpp"

namespace eval {

// A row of the training set and its similarity to an image.
struct Neighbour {
  double similarity = 0;
  int64_t row = 0;
};

class NeighbourSearch {
 public:
  // The similarity of two vectors is their dot product. With `normalise` both are first divided by
  // their length, or by 1e-12 if that is larger. The rows must outlive the search.
  NeighbourSearch(const LabelledRows& rows, bool normalise);

  // Returns the k most similar rows to each of `count` images, the most similar first; among
  // equally similar ones the first row comes first. An image has none if a similarity is not
  // finite. x: [count, features]. The result does not depend on `threads`.
  std::vector<std::vector<Neighbour>> find(const float* x, int64_t count, int64_t k,
                                           int threads) const;

 private:
  double inverse_length(const float* x) const;

  const LabelledRows& rows_;
  bool normalise_;
  std::vector<double> inverse_lengths_;
};

// Returns the score of each class: the sum of exp(similarity / temperature) over the neighbours of
// this class among the first k. All are divided by the first neighbour's exp(similarity /
// temperature), so nothing overflows.
std::vector<double> vote(const LabelledRows& rows, const std::vector<Neighbour>& neighbours,
                         int64_t k, double temperature);

// Returns the number of classes before class c, in the order of falling scores; among equal scores
// the first class comes first. Infinite if there is no such class.
double place_of(const std::vector<double>& scores, int64_t c);

}  // namespace eval
