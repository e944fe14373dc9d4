// What to do when the loss, a gradient or a parameter is not finite. Every rank has the same sums, so all decide alike.
#pragma once

#include <cstdint>
#include <string>

#include "config/table.hpp"

namespace train {

// [guard] of the deck.
struct GuardOptions {
  std::string nonfinite = "stop";
  int64_t max_skips = 20;

  void bind(config::Table& t) {
    auto may = config::OnResume::may_change;
    t.key("nonfinite", nonfinite,
          "loss or gradient is NaN or infinite, before the update. stop: exit 6; skip: no update in this step (it "
          "counts as one for "
          "schedules and bias corrections); rewind: "
          "back to "
          "the newest checkpoint, and the examples since then are left out")
        .one_of({"stop", "skip", "rewind"})
        .on_resume(may);
    t.key("max_skips", max_skips, "steps skipped, or rewinds, in a row; one more is exit 6")
        .min(1)
        .unit("steps")
        .on_resume(may);
  }
};

}  // namespace train
