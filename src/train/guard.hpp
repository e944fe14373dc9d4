// SPDX-License-Identifier: Apache-2.0
// Decides about steps whose loss, gradient or parameters are not finite. All ranks decide alike
// because they hold equal sums.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/table.hpp"
#include "shard/parameter.hpp"
#include "step/step_report.hpp"

namespace train {

// [guard] of the deck.
struct GuardOptions {
  enum class Nonfinite { stop, skip, rewind };
  Nonfinite nonfinite = Nonfinite::stop;
  int64_t max_skips = 20;

  void bind(config::Table& t) {
    auto may = config::OnResume::may_change;
    t.choice("nonfinite", nonfinite,
             {{"stop", Nonfinite::stop}, {"skip", Nonfinite::skip}, {"rewind", Nonfinite::rewind}},
             "loss or gradient is NaN or infinite, before the update. stop: exit 6; skip: no "
             "update in this step (it counts as one for schedules and bias corrections); rewind: "
             "back to the newest checkpoint, and the examples since then are left out")
        .on_resume(may);
    t.key(
         "max_skips", max_skips,
         "steps skipped or dropped (optimizer.drop_norm), or rewinds, in a row; one more is exit 6")
        .min(1)
        .unit("steps")
        .on_resume(may);
  }
};

// Decides whether a step is kept and explains why not. Counts consecutive bad steps.
class Guard {
 public:
  enum class Action {
    keep,      // the step is sound
    overflow,  // no update, because gradients were too large for fp16
    drop,      // no update, because gradients were too large for optimizer.drop_norm
    skip,      // no update
    rewind,    // back to the newest checkpoint
    give_up,   // the run ends
  };
  struct Verdict {
    Action action = Action::keep;
    std::string problem;  // for the log or the error; "" if the step is kept
  };

  explicit Guard(const GuardOptions& options) : options_(options) {}

  // `parameters` are in the order in which the report counts them.
  Verdict judge(int64_t step, const step::StepReport& report,
                const std::vector<shard::Parameter>& parameters);

 private:
  const GuardOptions& options_;
  int64_t consecutive_bad_ = 0;  // steps skipped, or rewinds
  int64_t last_bad_step_ = 0;
};

}  // namespace train
