// SPDX-License-Identifier: Apache-2.0
// Metrics of classes that are ranked by their scores. A target is positive if the image shows the
// class, 0 if it does not, and negative if that is not known. An unknown pair of image and class
// counts nowhere.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace eval {

// The classes of one image, the highest score first. Among equal scores the first class comes
// first. Classes whose target is not known are left out.
struct ClassCounts {
  double known = 0, shown = 0;  // classes with a known target, and with a positive one
  double first = 0;  // classes before the best one that is shown; infinite if there is none
  std::vector<double> hits{};  // shown classes among the first k, for each k; NaN if a score is NaN
};
// scores, targets: [classes].
ClassCounts count_classes(const float* scores, const float* targets, int64_t classes,
                          const std::vector<int64_t>& k);

// The precision that is used at a step in recall. PASCAL VOC from 2010 on and VISSL's meter take
// the largest precision at this or a larger recall. scikit-learn's average_precision_score takes
// the precision at this recall.
enum class Precision { largest_from_here, of_each_recall };

// Returns the average precision of one class over n images, or nothing if no image shows it. The
// images are taken by falling score, equal scores together, so their order has no influence. The
// result is the sum of (step in recall) * precision over the images that show the class. NaN if a
// score is NaN. Score: float or double.
template <class Score>
std::optional<double> average_precision(const Score* scores, const float* targets, int64_t n,
                                        Precision precision = Precision::largest_from_here);

}  // namespace eval
