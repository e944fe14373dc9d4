// SPDX-License-Identifier: Apache-2.0
#include "train/mode_options.hpp"

namespace train {
using config::OnResume;

void BenchOptions::bind(config::Table& t) {
  t.key("warmup_steps", warmup_steps, "steps before the timed ones (--mode bench)")
      .min(1)
      .on_resume(OnResume::may_change);
  t.key("steps", steps, "timed steps").min(1).on_resume(OnResume::may_change);
  t.key("max_s", max_s, "stop timing after this, with at least two timed steps")
      .above(0)
      .unit("s")
      .on_resume(OnResume::may_change);
}

void ShowOptions::bind(config::Table& t) {
  auto may = config::OnResume::may_change;
  t.key("data", data,
        "source of the examples: \"\" = the training stream at `step`; a [data.NAME] = its first "
        "ones, unshuffled")
      .on_resume(may);
  t.key("step", step, "step of training whose batch is shown").min(1).on_resume(may);
  t.key("examples", examples, "number of examples")
      .min(1)
      .max(4096)
      .unit("examples")
      .on_resume(may);
}

void IndexOptions::bind(config::Table& t) {
  t.key("data", data, "names of [data.NAME] to read (--mode index); [] = all")
      .on_resume(config::OnResume::may_change);
}

}  // namespace train
