// SPDX-License-Identifier: Apache-2.0
// Evaluates a logistic regression on the model's features of the training set (ssl.md 8): the share
// of test images whose class it predicts. The published protocol takes 1 % or 10 % of the images;
// here data.NAME.limit chooses them. All ranks embed both sets. The features of the training set
// are gathered by position; then each rank fits some strengths of the regularisation. The result is
// the same on any number of ranks.
#include <algorithm>
#include <limits>

#include "eval/feature_evaluator.hpp"
#include "eval/logistic.hpp"

namespace eval {
namespace {

struct LowShotOptions : FeatureOptions {
  std::vector<double> l2 = {0.025};
  void bind(config::Table& t) override;
  std::vector<Metric> metrics() const;
  Features fields(const models::Model& model) const {
    return labelled_images(model, "eval kind low_shot");
  }
};

void LowShotOptions::bind(config::Table& t) {
  bind_train_data(t,
                  "name of a [data.NAME] table: the few images that the regression is fitted to; "
                  "`data` holds the images that it is tested on");
  t.key("l2_reg", l2,
        "strength of the regularisation, l2_reg / images * |weights|^2 / 2 beside the sum of the "
        "losses; of several the best one on the test images counts, as in the published protocol")
      .above(0)
      .check([this] { return problem_of_list(l2); })
      .on_resume(config::OnResume::may_change);
  bind_tap(t);
}

class LowShot : public FeatureEvaluator {
 public:
  explicit LowShot(const LowShotOptions& options)
      : FeatureEvaluator("a regression"), options_(options) {}

  Result run(const Context& context) override {
    const data::Dataset& train = *context.further.at("train_data");
    FeatureTable table;
    std::vector<LogisticProbe> probes;
    // By strength; the last count is of images without a finite score.
    std::vector<double> hits(options_.l2.size() + 1, 0.0);
    auto predict = [&](size_t i, const float* features) { return probes[i].predict(features); };
    if (!gather_features(context, train, "images for regressions", 1, answer_label, 0, table) ||
        !fit(context, train, labelled_rows(table), probes) || !count_hits(context, predict, hits))
      return interrupted();
    const auto best = std::max_element(hits.begin(), hits.end() - 1);
    Result result{{}, context.dataset.size(), "images"};
    result.values.emplace_back("accuracy", hits.back() > 0
                                               ? std::numeric_limits<double>::quiet_NaN()
                                               : *best / double(result.examples));
    if (options_.l2.size() > 1)
      result.values.emplace_back("l2_reg", options_.l2[size_t(best - hits.begin())]);
    return result;
  }

 private:
  // Fits the regressions, each on one rank.
  bool fit(const Context& context, const data::Dataset& train, const LabelledRows& rows,
           std::vector<LogisticProbe>& out) const {
    const int64_t width = rows.features, n = int64_t(options_.l2.size());
    const int64_t weights = (width + 1) * rows.classes, numbers = 2 * width + weights;
    const auto images = int64_t(rows.labels.size());
    need_feature_memory(
        context, train, "",
        8 * (images * (width + 1) + 3 * images * rows.classes + 9 * weights + 2 * n * numbers));
    std::vector<double> all;
    auto fit_to = [&](int64_t i, std::span<double> numbers_of_probe) {
      const LogisticProbe probe = fit_logistic(rows, options_.l2[size_t(i)], context.threads);
      double* to = numbers_of_probe.data();
      for (const std::vector<double>* values : {&probe.mean, &probe.deviation, &probe.weights})
        for (double v : *values) *to++ = v + 0.0;
    };
    if (!fit_on_ranks(context, "regressions", n, numbers, fit_to, all)) return false;
    for (int64_t i = 0; i < n; ++i) {
      const auto mean = all.begin() + i * numbers, deviation = mean + width,
                 from = deviation + width;
      out.push_back({{mean, deviation}, {deviation, from}, {from, from + weights}});
    }
    return true;
  }

  LowShotOptions options_;
};

std::vector<Metric> LowShotOptions::metrics() const {
  std::vector<Metric> out = {
      {"accuracy", "1", "share of the test images whose class the regression predicts"}};
  if (l2.size() > 1) out.push_back({"l2_reg", "1", "the strength that gives this accuracy"});
  return out;
}

}  // namespace

Registered low_shot_row() {
  return feature_row<LowShot, LowShotOptions>(
      "low_shot", "accuracy of a logistic regression on the features of a few images");
}

}  // namespace eval
