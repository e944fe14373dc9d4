// SPDX-License-Identifier: Apache-2.0
// Recorded cross-entropies of labels and targets (losses.h5, ssl.md 3.3): labels that are not
// known, smoothing, temperature, normalised outputs, distributions, binary cross-entropy.
#pragma once

#include "case_file.hpp"
#include "compare.hpp"
#include "run_case.hpp"

namespace golden {

// True if `json` of a group of losses.h5 names one of these losses.
bool is_class_loss(const std::string& name);
// Computes the loss of the group and its gradients again, and compares.
void run_class_loss(const CaseFile& file, const std::string& group, const Settings& settings,
                    Report& report);

}  // namespace golden
