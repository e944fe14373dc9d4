// SPDX-License-Identifier: Apache-2.0
#include "job/goodput.hpp"

#include <algorithm>

#include "base/text.hpp"

namespace job {
namespace {

std::string seconds_text(double seconds) {
  return seconds < 100 ? fmt::format("{:.1f} s", seconds) : base::hms(seconds);
}

}  // namespace

Goodput goodput_of(const AttemptLog& log, const Spent& own) {
  Goodput out;
  std::vector<StartRecord> starts = log.starts();
  starts.back().spent = own;
  for (size_t i = 0; i < starts.size(); ++i) {
    const StartRecord& start = starts[i];
    const Spent kept = start.kept();
    out.job_s += start.spent.total();
    out.training_s += kept[Spent::training];
    out.evaluation_s += kept[Spent::evaluation];
    out.checkpoint_s += kept[Spent::checkpoint];
    out.setup_s += kept[Spent::setup];
    out.data_s += kept[Spent::data];
    out.exchange_s += kept[Spent::exchange];
    out.redone_s += start.spent[Spent::redone] + start.redone.total();
    out.redone_steps += start.redone_steps;
    if (i + 1 == starts.size()) break;
    out.idle_s += std::max(0.0, starts[i + 1].begin_s - start.end_s);
    if (start.how != "failed" && start.how != "killed") continue;
    ++out.failures;
    out.failures_redone_s += start.redone.total();
    out.failures_setup_s += starts[i + 1].kept()[Spent::setup];
    out.last_failure = start.reason;
  }
  return out;
}

std::vector<std::string> goodput_lines(const AttemptLog& log, const Spent& own) {
  const Goodput g = goodput_of(log, own);
  const double whole = std::max(g.job_s, 1e-9), training = std::max(g.training_s, 1e-9);
  const std::vector<int64_t>& first = log.starts().front().attempts;
  std::vector<std::string> out = {fmt::format(
      "goodput  {:.1f} % of {} of job time trained what counts{}; {:.1f} % of that waited for "
      "data, "
      "{:.1f} % for exchanges; {} between {} starts",
      100 * g.training_s / whole, seconds_text(g.job_s),
      first.empty() || first[0] == 1 ? "" : fmt::format(" (since attempt {})", first[0]),
      100 * g.data_s / training, 100 * g.exchange_s / training, seconds_text(g.idle_s),
      log.starts().size())};
  if (g.failures > 0)
    out.push_back(fmt::format(
        "failures {} of {} starts, which cost {}: redone {}, start-up after them {}; the last one: "
        "{}",
        g.failures, log.starts().size(), seconds_text(g.failures_redone_s + g.failures_setup_s),
        seconds_text(g.failures_redone_s), seconds_text(g.failures_setup_s),
        base::one_line(g.last_failure, 200)));
  return out;
}

}  // namespace job
