// SPDX-License-Identifier: Apache-2.0
// --mode plan: what the data of a deck cost besides the step: classes of samples, and features of
// evaluations.
#pragma once

#include <string>
#include <vector>

#include "train/job.hpp"

namespace modes {

// Return lines of a table. A set whose files cannot be read here is named as such.
// class_rows: each set whose samples are drawn by class: memory, and the labels that a start reads.
// feature_rows: each evaluation that keeps features of all images: memory, and the images that a
// rank embeds.
std::vector<std::string> class_rows(const train::Job& job, int ranks);
std::vector<std::string> feature_rows(const train::Job& job, int ranks);

}  // namespace modes
