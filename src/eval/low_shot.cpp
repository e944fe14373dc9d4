// SPDX-License-Identifier: Apache-2.0
// Evaluates a logistic regression on the model's features of the training set (ssl.md 8): the share
// of test images whose class it predicts. The published protocol takes 1 % or 10 % of the images;
// here data.NAME.limit chooses them. All ranks embed both sets. The features of the training set
// are gathered by position; then each rank fits some strengths of the regularisation. The result is
// the same on any number of ranks.
#include <algorithm>
#include <limits>

#include "eval/labelled_features.hpp"
#include "eval/logistic.hpp"

namespace eval {
namespace {

struct LowShotOptions : config::Table::Variant {
  std::string train_data, tap;
  std::vector<double> l2 = {0.025};
  void bind(config::Table& t) override;
};

void LowShotOptions::bind(config::Table& t) {
  const auto may = config::OnResume::may_change;
  t.key("train_data", train_data,
        "name of a [data.NAME] table: the few images that the regression is fitted to; `data` "
        "holds the images that it is tested on")
      .required()
      .on_resume(may);
  t.key("l2_reg", l2,
        "strength of the regularisation, l2_reg / images * |weights|^2 / 2 beside the sum of the "
        "losses; of several the best one on the test images counts, as in the published protocol")
      .above(0)
      .check([this] { return problem_of_list(l2); })
      .on_resume(may);
  t.key("tap", tap,
        "features of an image, as extract.taps names them; \"\" = the vector that a head reads")
      .on_resume(may);
}

class LowShot : public Evaluator {
 public:
  explicit LowShot(const LowShotOptions& options) : options_(options) {}

  void check(const data::Dataset& set) const override {
    if (set.size() == 0)
      base::fail(base::Exit::data, "[data.{}] holds no example for a regression", set.name());
  }

  Result run(const Context& context) override {
    const data::Dataset& train = *context.further.at("train_data");
    FeatureTable table;
    std::vector<LogisticProbe> probes;
    // By strength; the last count is of images without a finite score.
    std::vector<double> hits(options_.l2.size() + 1, 0.0);
    if (!gather_features(context, train, "images for regressions", 1, answer_label, 0, table) ||
        !fit(context, train, labelled_rows(table), probes) || !test(context, probes, hits))
      return {.values = {}, .examples = 0, .interrupted = true};
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
    std::vector<double> all(size_t(n * numbers), 0.0);
    auto part = [&](int64_t i) { return std::span(all.begin() + i * numbers, size_t(numbers)); };
    const int64_t known = context.journal
                              ? context.journal->begin("regressions", n,
                                                       [&](int64_t i, std::string_view bytes) {
                                                         copy_values(bytes, part(i));
                                                       })
                              : 0;
    for (int64_t first = known; first < n; first += context.world.size()) {
      if (context.interrupted()) return false;
      const int64_t i = first + context.world.rank();
      if (i >= n) continue;
      const LogisticProbe probe = fit_logistic(rows, options_.l2[size_t(i)], context.threads);
      double* to = part(i).data();
      for (const std::vector<double>* values : {&probe.mean, &probe.deviation, &probe.weights})
        for (double v : *values) *to++ = v + 0.0;
      if (!context.journal) continue;
      context.journal->add(i, std::span<const double>(part(i)));
      context.journal->write();
    }
    share_values(context.world, all);
    for (int64_t i = 0; i < n; ++i) {
      const auto mean = all.begin() + i * numbers, deviation = mean + width,
                 from = deviation + width;
      out.push_back({{mean, deviation}, {deviation, from}, {from, from + weights}});
    }
    return true;
  }

  bool test(const Context& context, const std::vector<LogisticProbe>& probes,
            std::vector<double>& hits) const {
    std::vector<double> of_image(hits.size());
    auto count = [&] {
      for (size_t i = 0; i < hits.size(); ++i) hits[i] += of_image[i];
    };
    const bool complete = embed(
        context, context.dataset, "images",
        [&](int64_t, std::string_view bytes) {
          copy_values(bytes, std::span(of_image));
          count();
        },
        [&](const Embedded& images) {
          for (int64_t i = 0; i < images.count; ++i) {
            const int64_t label = label_of(context.dataset, images.batch, i);
            of_image.back() = 0;
            for (size_t p = 0; p < probes.size(); ++p) {
              const int64_t predicted =
                  probes[p].predict(images.features + i * feature_count(context));
              of_image[p] = predicted == label;
              of_image.back() += predicted < 0;
            }
            count();
            if (context.journal)
              context.journal->add(images.first + i, std::span<const double>(of_image));
          }
        });
    if (complete) share_values(context.world, hits);  // whole numbers, so the sum is exact
    return complete;
  }

  LowShotOptions options_;
};

const LowShotOptions& low_shot_options(const config::Table::Variant& options) {
  return dynamic_cast<const LowShotOptions&>(options);
}

}  // namespace

Registered low_shot_row() {
  using Variant = config::Table::Variant;
  return {"low_shot",
          "accuracy of a logistic regression on the features of a few images",
          [](const Variant& options) {
            std::vector<Metric> out = {
                {"accuracy", "1", "share of the test images whose class the regression predicts"}};
            if (low_shot_options(options).l2.size() > 1)
              out.push_back({"l2_reg", "1", "the strength that gives this accuracy"});
            return out;
          },
          "turn images into features",
          nullptr,
          [] { return std::shared_ptr<Variant>(std::make_shared<LowShotOptions>()); },
          [](const Variant& options) -> std::unique_ptr<Evaluator> {
            return std::make_unique<LowShot>(low_shot_options(options));
          },
          [](const models::Model& model,
             const Variant& options) -> std::unique_ptr<models::ForwardPass> {
            return make_tap_pass(model, low_shot_options(options).tap);
          },
          [](const Variant& options) {
            return std::map<std::string, std::string>{
                {"train_data", low_shot_options(options).train_data}};
          },
          [](const models::Model& model, const Variant&, const std::string&) {
            return std::optional(labelled_images(model, "eval kind low_shot"));
          }};
}

}  // namespace eval
