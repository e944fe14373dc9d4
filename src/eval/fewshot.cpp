// SPDX-License-Identifier: Apache-2.0
// Evaluates linear probes on the model's features of a few images of each class (cappa.md 9.5): the
// share of test images whose class a probe predicts. All ranks embed both sets. The features of the
// training set are gathered by position; then each rank fits some of the probes, and each predicts
// the classes of its own test images. The result is the same on any number of ranks.
#include <algorithm>
#include <limits>

#include "eval/feature_evaluator.hpp"
#include "eval/linear_probe.hpp"

namespace eval {
namespace {

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

struct FewshotOptions : FeatureOptions {
  std::vector<int64_t> shots = {1, 5, 10, 25};
  int64_t seeds = 3;
  std::vector<double> l2 = {1024};
  void bind(config::Table& t) override;
  std::vector<Metric> metrics() const;
  Features fields(const models::Model& model) const {
    return labelled_images(model, "eval kind fewshot");
  }

  bool sweeps() const { return l2.size() > 1; }
  int64_t probes() const { return int64_t(shots.size()) * seeds; }
  // Probes are numbered by shots, then by seed.
  int64_t shots_of(int64_t probe) const { return shots[size_t(probe / seeds)]; }
  uint64_t seed_of(int64_t probe) const { return uint64_t(probe % seeds); }
};

void FewshotOptions::bind(config::Table& t) {
  const auto may = config::OnResume::may_change;
  bind_train_data(t,
                  "name of a [data.NAME] table: the images that probes are fitted to; `data` holds "
                  "the images that they are tested on");
  t.key("shots", shots, "images of each class that a probe is fitted to; smaller classes give all")
      .min(1)
      .unit("images")
      .check([this] { return problem_of_list(shots); })
      .on_resume(may);
  t.key("seeds", seeds, "random choices of these images: seeds 0 to seeds - 1")
      .min(1)
      .max(1000)
      .on_resume(may);
  t.key("l2_reg", l2,
        "strength of the regularisation; of several the probe takes the one that is best on a "
        "fifth of its images, held out from each class (at least one), then fits to all; classes "
        "of one image hold none out, and without any the first value is taken")
      .above(0)
      .check([this] { return problem_of_list(l2); })
      .on_resume(may);
  bind_tap(t);
}

class Fewshot : public FeatureEvaluator {
 public:
  explicit Fewshot(const FewshotOptions& options)
      : FeatureEvaluator("a probe"), options_(options) {}

  Result run(const Context& context) override {
    const data::Dataset& train = *context.further.at("train_data");
    FeatureTable table;
    std::vector<Fitted> fitted;
    std::vector<double> hits(size_t(options_.probes()) + 1, 0.0);
    if (!gather_features(context, train, "images for probes", 1, answer_label, 0, table) ||
        !fit(context, train, labelled_rows(table), fitted) || !test(context, fitted, hits))
      return interrupted();
    return result(context.dataset.size(), fitted, hits);
  }

 private:
  struct Fitted {
    LinearProbe probe;
    double l2 = 0;
  };

  // Fits the probes, each on one rank.
  bool fit(const Context& context, const data::Dataset& train, const LabelledRows& rows,
           std::vector<Fitted>& out) const {
    const int64_t width = rows.features, classes = rows.classes, n = options_.probes();
    const int64_t weights = (width + 1) * classes, numbers = 1 + 2 * width + weights;
    need_feature_memory(context, train, "shots, ", bytes_of_fit(rows) + 2 * 8 * n * numbers);
    std::vector<double> all;
    auto fit_to = [&](int64_t probe, std::span<double> numbers_of_probe) {
      const Fitted one = fit_one(rows, probe);
      double* to = numbers_of_probe.data();
      *to++ = one.l2;
      for (const std::vector<double>* values :
           {&one.probe.mean, &one.probe.deviation, &one.probe.weights})
        for (double v : *values) *to++ = v + 0.0;
    };
    if (!fit_on_ranks(context, "probes", n, numbers, fit_to, all)) return false;
    for (int64_t probe = 0; probe < n; ++probe) {
      const auto l2 = all.begin() + probe * numbers, mean = l2 + 1, deviation = mean + width,
                 from = deviation + width;
      out.push_back({{{mean, deviation}, {deviation, from}, {from, from + weights}}, *l2});
    }
    return true;
  }

  Fitted fit_one(const LabelledRows& rows, int64_t probe) const {
    const int64_t shots = options_.shots_of(probe);
    const auto permuted = permuted_rows(rows, options_.seed_of(probe));
    const double l2 = options_.l2[choose_l2(rows, permuted, shots, options_.l2)];
    return {fit_probes(rows, first_of_each(permuted, shots), {l2})[0], l2};
  }

  // Returns an upper bound of the memory that fitting a probe takes.
  int64_t bytes_of_fit(const LabelledRows& rows) const {
    const int64_t most = *std::max_element(options_.shots.begin(), options_.shots.end());
    const int64_t n = std::min(int64_t(rows.labels.size()),
                               rows.classes * std::min(most, int64_t(rows.labels.size())));
    const int64_t width = rows.features + 1, size = std::min(n, width);
    const int64_t fits = int64_t(options_.l2.size());
    return 8 *
           (2 * n * width + 2 * size * size + n * rows.classes + (fits + 2) * width * rows.classes);
  }

  // Counts by probe the test images whose class it predicts; the last count is of images without a
  // finite score.
  static bool test(const Context& context, const std::vector<Fitted>& fitted,
                   std::vector<double>& hits) {
    std::vector<double> scores;
    auto predict = [&](size_t probe, const float* features) {
      return fitted[probe].probe.predict(features, scores);
    };
    return count_hits(context, predict, hits);
  }

  Result result(int64_t images, const std::vector<Fitted>& fitted,
                const std::vector<double>& hits) const {
    Result result{{}, images, "images"};
    for (size_t s = 0; s < options_.shots.size(); ++s) {
      double sum = 0;
      for (int64_t seed = 0; seed < options_.seeds; ++seed) {
        const size_t probe = s * size_t(options_.seeds) + size_t(seed);
        const double accuracy = hits.back() > 0 ? kNotANumber : hits[probe] / double(images);
        const std::string name = fmt::format("{}shot_seed{}", options_.shots[s], seed);
        result.values.emplace_back(name, accuracy);
        if (options_.sweeps()) result.values.emplace_back(name + "_l2", fitted[probe].l2);
        sum += accuracy;
      }
      result.values.emplace_back(fmt::format("{}shot", options_.shots[s]),
                                 sum / double(options_.seeds));
    }
    return result;
  }

  FewshotOptions options_;
};

std::vector<Metric> FewshotOptions::metrics() const {
  std::vector<Metric> out;
  for (int64_t count : shots) {
    for (int64_t seed = 0; seed < seeds; ++seed) {
      const std::string name = fmt::format("{}shot_seed{}", count, seed);
      out.push_back({name, "1",
                     fmt::format("share of the test images whose class a probe on {} images of "
                                 "each class predicts, chosen with seed {}",
                                 count, seed)});
      if (sweeps()) out.push_back({name + "_l2", "1", "the l2 of this probe"});
    }
    out.push_back({fmt::format("{}shot", count), "1",
                   fmt::format("mean over the seeds of {}shot_seed0, ...", count)});
  }
  return out;
}

}  // namespace

Registered fewshot_row() {
  return feature_row<Fewshot, FewshotOptions>(
      "fewshot", "accuracy of linear probes on the features of a few images of each class");
}

}  // namespace eval
