// SPDX-License-Identifier: Apache-2.0
// Recorded mixes of a batch (transforms.h5, groups mix/KIND_MODE): mixup and CutMix with the
// recorded shares and boxes, images and smoothed targets.
#pragma once

#include "case_file.hpp"
#include "compare.hpp"
#include "run_case.hpp"

namespace golden {

// True if the file holds mixes.
bool holds_mixes(const CaseFile& file);
// Mixes the recorded batch again and compares.
void run_mixes(const CaseFile& file, const Settings& settings, Report& report);

}  // namespace golden
