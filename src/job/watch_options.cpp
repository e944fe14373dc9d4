// SPDX-License-Identifier: Apache-2.0
#include "job/watchdog.hpp"

namespace job {

void WatchOptions::bind(config::Table& t) {
  const auto may = config::OnResume::may_change;
  t.key("limit_s", limit_s,
        "a job that makes no progress for this long hangs: the stacks of all ranks go to "
        "RUN/logs/stacks, and the log names the rank that the others wait for. A phase that stood "
        "still for long before, and went on, gets four times that. 0 = no watchdog")
      .min(0)
      .unit("s")
      .on_resume(may);
  t.choice("on_hang", on_hang, {{"end", OnHang::end}, {"report", OnHang::report}},
           "after a hang: \"end\" = exit 7, \"report\" = go on waiting")
      .on_resume(may);
  t.key(
       "flight_dir", flight_dir,
       "directory of each node in which the run makes one for its flight files, which hold what "
       "each rank does; needed only where the run directory's file system cannot map files. \"\" = "
       "RUN/logs/flight")
      .on_resume(may);
}

}  // namespace job
