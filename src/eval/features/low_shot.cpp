// SPDX-License-Identifier: Apache-2.0
// Logistic regressions on the features of a training set (ssl.md 8), one for each regularisation:
// the share of test images whose class the best one predicts. The published protocol takes 1 % or
// 10 % of the images; here data.NAME.limit chooses them.
#include <algorithm>

#include "eval/features/probe_method.hpp"
#include "eval/fits/logistic.hpp"

namespace eval {
namespace {

struct LowShot : ProbeMethod<LogisticProbe> {
  LowShot() { l2 = {0.025}; }
  void bind(config::Table& t) override;
  Words words() const override {
    return {"low_shot", "a regression", "regressions", "regressions"};
  }
  std::vector<Metric> metrics() const override;

  int64_t probes() const override { return int64_t(l2.size()); }
  Fitted fit_probe(int64_t probe) const override {
    return {fit_logistic(rows, l2[size_t(probe)], context->threads), l2[size_t(probe)]};
  }
  int64_t bytes_of_fit() const override {
    const int64_t width = rows.features + 1, n = int64_t(rows.labels.size());
    return 8 * (n * width + 3 * n * rows.classes + 9 * width * rows.classes);
  }
  std::vector<double> score(const std::vector<double>& places) const override;
};

void LowShot::bind(config::Table& t) {
  bind_train_data(t,
                  "name of a [data.NAME] table: the few images that the regression is fitted to; "
                  "`data` holds the images that it is tested on");
  t.key("l2_reg", l2,
        "strength of the regularisation: l2_reg / images * |weights|^2 / 2 is added to the sum of "
        "the losses; with several values, the one that is best on the test images is reported, as "
        "in the published protocol")
      .above(0)
      .check([this] { return problem_of_list(l2); })
      .on_resume(config::OnResume::may_change);
  bind_tap(t);
}

std::vector<Metric> LowShot::metrics() const {
  std::vector<Metric> out = {
      {"accuracy", "1", "share of the test images whose class the regression predicts"}};
  if (sweeps()) out.push_back({"l2_reg", "1", "the strength that gives this accuracy"});
  return out;
}

std::vector<double> LowShot::score(const std::vector<double>& places) const {
  const std::vector<double> accuracies = shares(places, images(), {1});
  const auto best = std::ranges::max_element(accuracies);
  if (!sweeps()) return {*best};
  return {*best, l2[size_t(best - accuracies.begin())]};
}

}  // namespace

Registered low_shot_row() {
  return feature_row<LowShot>("accuracy of a logistic regression on the features of a few images");
}

}  // namespace eval
