// SPDX-License-Identifier: Apache-2.0
// Metrics of images whose classes a model ranks, with one head or several: the share of images
// whose own class is among the k most likely ones, and the mean loss. On request, mean average
// precision, precision and recall at k, also for images with several classes. The two rows of
// classification.cpp use it.
#pragma once

#include "eval/classes/class_pass.hpp"
#include "eval/evaluator.hpp"

namespace eval {

struct RankingKeys {
  // The heads whose metrics are given, as NAME_topK and NAME_loss. None: one head runs, and its
  // metrics are called topK and loss. Several heads have no other metrics.
  std::vector<std::string> heads = {};
  std::vector<int64_t> k = {1, 5}, precision_at = {}, recall_at = {};
  bool mean_ap = false, skip_unlabelled = false;
  std::string targets = {}, mask = {};
  // True if the numbers need the scores of all classes.
  bool scores() const {
    return mean_ap || !precision_at.empty() || !recall_at.empty() || !targets.empty();
  }
  // True if some images may not count.
  bool masked() const { return skip_unlabelled || !mask.empty(); }
};

// The evaluator's pass is a ClassPass of these heads, with scores if keys.scores().
std::unique_ptr<Evaluator> make_ranking(const RankingKeys& keys);

}  // namespace eval
