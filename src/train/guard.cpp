// SPDX-License-Identifier: Apache-2.0
#include "train/guard.hpp"

#include <algorithm>
#include <cmath>

namespace train {
namespace {

std::string first_bad(const std::vector<double>& norms,
                      const std::vector<shard::Parameter>& parameters) {
  for (size_t i = 0; i < norms.size(); ++i)
    if (!std::isfinite(norms[i])) return parameters[i].path;
  return "";
}

// Describes a bad step for the log or the error. `sound`: the parameters are finite after the
// update.
std::string describe(int64_t step, const step::StepReport& report,
                     const std::vector<shard::Parameter>& parameters, bool sound) {
  if (report.dropped())
    return fmt::format("step {}: l2_grads={:.4g}, the gradient is not below optimizer.drop_norm",
                       step, report.gradients.gradients.global);
  std::string text = fmt::format("step {}: loss={}", step, report.loss());
  const std::vector<double>& gradients = report.gradients.gradients.per_parameter;
  if (!sound)
    text += fmt::format(", but after the update {} is not finite",
                        first_bad(report.update.parameters.per_parameter, parameters));
  else if (const std::string tensor = first_bad(gradients, parameters); !tensor.empty())
    text += fmt::format(" and the gradient of {} is not finite; nothing was updated", tensor);
  else
    text += " is not finite; nothing was updated";
  if (!report.finite && report.gradients.loss_scale > 0 && std::isfinite(report.loss()))
    text += fmt::format(" (loss scale {:g}{})", report.gradients.loss_scale,
                        report.overflow() ? "" : ", its minimum: precision.loss_scale.min");
  return text;
}

}  // namespace

Guard::Verdict Guard::judge(int64_t step, const step::StepReport& report,
                            const std::vector<shard::Parameter>& parameters) {
  const bool sound = !report.finite || std::isfinite(report.update.parameters.global);
  if (report.finite && sound) {
    if (step > last_bad_step_) consecutive_bad_ = 0;
    return {};
  }
  const std::string problem = describe(step, report, parameters, sound);
  last_bad_step_ = std::max(last_bad_step_, step);
  auto give_up = [&](const std::string& why) {
    return Verdict{
        Action::give_up,
        fmt::format(
            "{}{}. No checkpoint of this step was written, and the newest one is intact: lower "
            "optimizer.learning_rate, set optimizer.clip_norm or guard.nonfinite, and start again",
            problem, why)};
  };
  // An overflow in fp16 is expected, and a dropped step is wanted. They end the run only if they
  // happen too often in a row.
  const bool expected = report.overflow() || report.dropped();
  if (options_.nonfinite == GuardOptions::Nonfinite::stop && !expected) return give_up("");
  if (++consecutive_bad_ > options_.max_skips)
    return give_up(fmt::format(", {} times in a row (guard.max_skips)", consecutive_bad_));
  if (report.overflow())
    return {Action::overflow,
            fmt::format("step={} overflow in fp16: no update; loss_scale={:g} -> {:g}", step,
                        report.gradients.loss_scale, report.gradients.next_loss_scale)};
  if (report.dropped()) return {Action::drop, problem + ": no update"};
  if (options_.nonfinite == GuardOptions::Nonfinite::rewind) return {Action::rewind, problem};
  if (!sound)
    return give_up(": too late to skip the step (guard.nonfinite = \"rewind\" could go back)");
  return {Action::skip, problem};
}

}  // namespace train
