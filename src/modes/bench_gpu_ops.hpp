// SPDX-License-Identifier: Apache-2.0
// Measures the ops of a training step on the GPU itself, for --mode bench.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "train/job.hpp"

namespace modes {

// Runs bench.op_steps steps after step `last`, in which the GPU measures each op. Prints the ops by
// time and each shape that takes at least 0.5 % of all, and adds the shapes to the summary. Events
// around the ops slow these steps down, so no other figure uses these steps. All ranks call.
void add_gpu_ops(nlohmann::ordered_json& summary, train::Job& job, int64_t last);

}  // namespace modes
