// SPDX-License-Identifier: Apache-2.0
#include "records/trace_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "config/all.hpp"

namespace records {

void TraceOptions::bind(config::Table& t) {
  const auto may = config::OnResume::may_change;
  t.key("steps", steps,
        "first steps of the windows that are traced: what each thread does goes to "
        "RUN/logs/trace, for Perfetto and tools/trace; [] = no trace")
      .min(1)
      .on_resume(may);
  t.key("length", length, "steps of a window").min(1).unit("steps").on_resume(may);
  t.key("ranks", ranks, "ranks that are traced; those that a job does not have are left out")
      .min(0)
      .one_of({config::kAll})
      .on_resume(may);
  t.key("stop_after", stop_after,
        "the run stops after the last window, with a checkpoint and exit 8")
      .on_resume(may);
}

std::vector<TraceOptions::Window> TraceOptions::windows() const {
  std::vector<Window> out;
  for (const int64_t first : std::set<int64_t>(steps.begin(), steps.end()))
    if (out.empty() || first > out.back().last) out.push_back({first, first + length - 1});
  return out;
}

std::string TraceOptions::left_out() const {
  std::string out;
  const std::vector<Window> kept = windows();
  for (const int64_t first : std::set<int64_t>(steps.begin(), steps.end()))
    if (std::ranges::find(kept, first, &Window::first) == kept.end())
      out += fmt::format("{}{}", out.empty() ? "" : ", ", first);
  return out;
}

bool TraceOptions::traces(int rank) const {
  return config::is_all(ranks) || std::ranges::find(ranks, rank) != ranks.end();
}

}  // namespace records
