// SPDX-License-Identifier: Apache-2.0
// Classes that a model confuses, for people and tools/report.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace eval {

// Returns the text of confusions.json, an object with these members:
//   images   number of images
//   correct  number of images that the model takes for their own class
//   classes  an object for each class, in order of the numbers: name, images, correct, predicted
//            (images of any class that the model takes for this one), and wrong: pairs
//            [class, images] of the ten wrong classes predicted most for this class's images
// `labels` and `predicted` hold the numbers of the classes of each image. Equally frequent wrong
// classes come in the order of their numbers.
std::string confusions_json(const std::vector<std::string>& names,
                            const std::vector<int64_t>& labels,
                            const std::vector<int64_t>& predicted);

}  // namespace eval
