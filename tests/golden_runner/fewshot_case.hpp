// SPDX-License-Identifier: Apache-2.0
// Linear probes of the published few-shot evaluator (tests/golden/README.md, fewshot.h5).
#pragma once

#include "case_file.hpp"
#include "compare.hpp"

namespace golden {

// True if a group of the file holds recorded probes.
bool holds_probes(const CaseFile& file);

// Runs the probes of all groups: the random choice of rows, the weights, and the evaluator itself
// on the recorded features, spread over all ranks. Collective.
void run_probes(const CaseFile& file, comm::Comm& world, Report& report);

}  // namespace golden
