// SPDX-License-Identifier: Apache-2.0
// BLEU-1 to BLEU-4, ROUGE-L and CIDEr-D of captions against one or many references, as COCO's
// published scorer defines them (pycocoevalcap 1.2). METEOR and SPICE are left out, because they
// need Java programs with tables of synonyms.
//
// Two odd cases differ. A set without examples is an error here; Python returns NaN for ROUGE-L.
// CIDEr-D is 0 here if all references of a set are empty; Python raises ValueError.
#pragma once

#include <array>
#include <string>
#include <vector>

namespace eval {

// The numbers of one caption or of a set. All are in [0, 1] except cider_d, which is in [0, 10].
struct CaptionScores {
  // bleu[n - 1] is BLEU-n: the geometric mean of the precisions of 1- to n-grams, times the penalty
  // for candidates shorter than the reference of the closest length.
  std::array<double, 4> bleu{};
  // F-measure of the longest common subsequence with beta 1.2. Precision and recall are each the
  // largest over the references.
  double rouge_l = 0;
  // Ten times the mean over references and over n = 1..4 of the clipped cosine of TF-IDF vectors,
  // times exp(-d^2 / 72) for a difference of d bigrams. Document frequencies count the references
  // of the whole set, so a set of one example scores 0.
  double cider_d = 0;
};

struct CaptionMetrics {
  // BLEU of the set comes from the summed counts of its examples. ROUGE-L and CIDEr-D are the means
  // over the examples.
  CaptionScores set;
  std::vector<CaptionScores> examples;
};

// Scores candidates[i] against references[i]. Both pass through tokenize_caption first. Sums go
// over the examples in order, so equal arguments give equal bits. Error(Exit::data) if there is no
// example or an example has no reference. Both arguments must have equal sizes.
CaptionMetrics caption_metrics(const std::vector<std::string>& candidates,
                               const std::vector<std::vector<std::string>>& references);

// Scores captions that are tokenized already: words with one space between them. Words are opaque
// UTF-8. The two separators of the published scorer are kept: BLEU and CIDEr-D split at runs of
// Unicode white space as Python's str.split() does, ROUGE-L splits at each single space. An empty
// caption is thus one empty word for ROUGE-L, and equals an empty reference.
CaptionMetrics tokenized_caption_metrics(const std::vector<std::string>& candidates,
                                         const std::vector<std::vector<std::string>>& references);

}  // namespace eval
