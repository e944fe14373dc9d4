// SPDX-License-Identifier: Apache-2.0
#include "job/watchdog.hpp"

namespace job {

void WatchOptions::bind(config::Table& t) {
  const auto may = config::OnResume::may_change;
  t.key("limit_s", limit_s,
        "a job that makes no progress for this long hangs: the stacks of all ranks go to "
        "RUN/logs/stacks, and the log names the rank that the others wait for. If a phase once "
        "made no progress for more than a quarter of its limit and then continued, its limit "
        "becomes four times that duration. 0 = no watchdog")
      .min(0)
      .unit("s")
      .on_resume(may);
  t.choice("on_hang", on_hang, {{"end", OnHang::end}, {"report", OnHang::report}},
           "after a hang: \"end\" = exit 7, \"report\" = go on waiting")
      .on_resume(may);
  t.key("flight_dir", flight_dir,
        "directory on each node in which the run makes a folder for its flight files, which record "
        "what each rank does; needed only if the file system of the run directory cannot map "
        "files. \"\" = RUN/logs/flight")
      .on_resume(may);
}

}  // namespace job
