// SPDX-License-Identifier: Apache-2.0
#include "eval/class_metrics.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace eval {

ClassCounts count_classes(const float* scores, const float* targets, int64_t classes,
                          const std::vector<int64_t>& k) {
  ClassCounts counts;
  bool broken = false;
  std::vector<int64_t> known;
  for (int64_t c = 0; c < classes; ++c) {
    if (targets[c] < 0) continue;
    known.push_back(c);
    counts.shown += targets[c] > 0;
    broken |= std::isnan(scores[c]);
  }
  counts.known = double(known.size());
  counts.first = std::numeric_limits<double>::infinity();
  counts.hits.assign(k.size(), broken ? std::numeric_limits<double>::quiet_NaN() : 0);
  if (broken) return counts;
  std::stable_sort(known.begin(), known.end(),
                   [&](int64_t a, int64_t b) { return scores[a] > scores[b]; });
  for (size_t place = 0; place < known.size(); ++place) {
    if (!(targets[known[place]] > 0)) continue;
    counts.first = std::min(counts.first, double(place));
    for (size_t i = 0; i < k.size(); ++i) counts.hits[i] += int64_t(place) < k[i];
  }
  return counts;
}

template <class Score>
std::optional<double> average_precision(const Score* scores, const float* targets, int64_t n,
                                        Precision kind) {
  struct Image {
    Score score;
    bool shows;
  };
  std::vector<Image> images;
  double shown = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (targets[i] < 0) continue;
    if (std::isnan(scores[i])) return std::numeric_limits<double>::quiet_NaN();
    images.push_back({scores[i], targets[i] > 0});
    shown += targets[i] > 0;
  }
  if (shown == 0) return std::nullopt;
  std::sort(images.begin(), images.end(),
            [](const Image& a, const Image& b) { return a.score > b.score; });
  std::vector<double> recall, precision;  // after all images of each score
  double hits = 0;
  for (size_t i = 0; i < images.size(); ++i) {
    hits += double(images[i].shows);
    if (i + 1 < images.size() && images[i + 1].score == images[i].score) continue;
    recall.push_back(hits / shown);
    precision.push_back(hits / double(i + 1));
  }
  for (size_t i = precision.size() - 1; i > 0 && kind == Precision::largest_from_here; --i)
    precision[i - 1] = std::max(precision[i - 1], precision[i]);
  double sum = 0;
  for (size_t i = 0; i < recall.size(); ++i)
    sum += (recall[i] - (i ? recall[i - 1] : 0)) * precision[i];
  return sum;
}

template std::optional<double> average_precision(const float*, const float*, int64_t, Precision);
template std::optional<double> average_precision(const double*, const float*, int64_t, Precision);

}  // namespace eval
