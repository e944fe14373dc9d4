// SPDX-License-Identifier: Apache-2.0
// Evaluates linear support vector machines that are fitted to a few images of each class (ssl.md
// 8): the mean over classes of the average precision on the test images, with several choices of
// images. All ranks embed both sets, whose features are gathered by position; then each rank fits
// and tests some of the machines. The result is the same on any number of ranks.
#include <algorithm>
#include <cmath>

#include "base/numpy_random.hpp"
#include "eval/class_metrics.hpp"
#include "eval/dense.hpp"
#include "eval/linear_svm.hpp"
#include "eval/svm_options.hpp"

namespace eval {
namespace {

struct LowShotSvmOptions : SvmOptions {
  std::vector<int64_t> shots = {1, 2, 4, 8, 16, 32, 64, 96};
  int64_t seeds = 5;
  void bind(config::Table& t) override;
  std::vector<Metric> metrics() const;
  Features fields(const models::Model& model) const { return fields_for(model, "svm_low_shot"); }
  // Sets of machines are numbered by shots, then by cost, then by seed.
  int64_t sets() const { return int64_t(shots.size() * costs.size()) * seeds; }
};

void LowShotSvmOptions::bind(config::Table& t) {
  const auto may = config::OnResume::may_change;
  bind_shared(t,
              "costs of an error; for each number of shots the one with the best mean over the "
              "seeds on the test images counts, as in the published protocol",
              "leaves the image out of the fit for that class");
  t.key("shots", shots, "images that show a class, for each class; smaller classes give all")
      .min(1)
      .unit("images")
      .check([this] { return problem_of_list(shots); })
      .on_resume(may);
  t.key("seeds", seeds, "random choices of these images: seeds 0 to seeds - 1")
      .min(1)
      .max(1000)
      .on_resume(may);
}

// Mean average precisions of several choices of images.
struct Spread {
  double mean = 0, least = 0, most = 0, deviation = 0;
};
Spread spread_of(std::span<const double> values) {
  Spread s{0, *std::ranges::min_element(values), *std::ranges::max_element(values), 0};
  for (double v : values) s.mean += v / double(values.size());
  for (double v : values) s.deviation += (v - s.mean) * (v - s.mean) / double(values.size());
  s.deviation = std::sqrt(s.deviation);
  return s;
}

class LowShotSvm : public FeatureEvaluator {
 public:
  explicit LowShotSvm(const LowShotSvmOptions& options)
      : FeatureEvaluator("a support vector machine"), options_(options) {}

  Result run(const Context& context) override {
    const data::Dataset &train = *context.further.at("train_data"), &test = context.dataset;
    const int64_t width = feature_count(context) + 1;
    Tables tables;
    std::vector<double> precisions;  // of each set of machines
    if (!options_.gather(context, train, "images for machines", 8 * train.size() * width,
                         tables.train) ||
        !options_.gather(context, test, "images that test machines", 8 * test.size() * width,
                         tables.test) ||
        !measure(context, tables, precisions))
      return interrupted();
    Result result{{}, test.size(), "images"};
    for (size_t k = 0; k < options_.shots.size(); ++k) add(precisions, k, result);
    return result;
  }

 private:
  struct Tables {
    FeatureTable train, test;
  };
  using Choice = std::vector<std::vector<int64_t>>;  // rows that show a class, in random order

  // Fits and tests the sets of machines, each on one rank.
  bool measure(const Context& context, const Tables& tables, std::vector<double>& out) const {
    const int64_t features = tables.train.features;
    const std::vector<double> train = svm_rows(tables.train.x.data(), tables.train.rows, features),
                              test = svm_rows(tables.test.x.data(), tables.test.rows, features);
    std::vector<Choice> choices;
    for (int64_t seed = 0; seed < options_.seeds; ++seed)
      choices.push_back(choice(tables.train, uint64_t(seed)));
    auto measure_one = [&](int64_t i, std::span<double> to) {
      const auto of_shots = int64_t(options_.costs.size()) * options_.seeds;
      to[0] = mean_precision(tables, train, test, choices[size_t(i % options_.seeds)],
                             options_.shots[size_t(i / of_shots)],
                             options_.costs[size_t(i % of_shots / options_.seeds)]);
    };
    return fit_on_ranks(context, "machines", options_.sets(), 1, measure_one, out);
  }

  Choice choice(const FeatureTable& train, uint64_t seed) const {
    Choice rows(size_t(options_.classes(train)));
    for (int64_t i = 0; i < train.rows; ++i)
      for (size_t c = 0; c < rows.size(); ++c)
        if (options_.shows(train, i, int64_t(c)) > 0) rows[c].push_back(i);
    base::NumpyRandom random(seed);
    for (std::vector<int64_t>& of_class : rows) random.shuffle(of_class);
    return rows;
  }

  // Returns the mean over the classes that a test image shows.
  double mean_precision(const Tables& tables, const std::vector<double>& train,
                        const std::vector<double>& test, const Choice& choice, int64_t shots,
                        double cost) const {
    const int64_t width = tables.train.features + 1, n = tables.test.rows;
    std::vector<int64_t> chosen = first_of_each(choice, shots);
    std::ranges::sort(chosen);  // an image may show several classes
    chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
    double sum = 0, shown = 0;
    std::vector<double> scores(static_cast<size_t>(n));
    std::vector<float> targets(static_cast<size_t>(n));
    for (int64_t c = 0; c < int64_t(choice.size()); ++c) {
      std::vector<int64_t> rows;
      std::vector<char> shows(size_t(tables.train.rows));
      for (int64_t i : chosen)
        if (const float known = options_.shows(tables.train, i, c); known >= 0) {
          rows.push_back(i);
          shows[size_t(i)] = known > 0;
        }
      const std::vector<double> w = fit_svm(train, width, rows, shows, cost);
      for (int64_t i = 0; i < n; ++i) {
        scores[size_t(i)] = dot(test.data() + i * width, w.data(), width);
        targets[size_t(i)] = options_.shows(tables.test, i, c);
      }
      const std::optional<double> precision = average_precision(scores.data(), targets.data(), n);
      sum += precision.value_or(0);
      shown += double(precision.has_value());
    }
    return sum / shown;  // NaN if the set shows no class
  }

  void add(const std::vector<double>& precisions, size_t k, Result& result) const {
    const auto seeds = size_t(options_.seeds);
    auto spread = [&](size_t cost) {
      return spread_of(
          std::span(precisions).subspan((k * options_.costs.size() + cost) * seeds, seeds));
    };
    size_t best = 0;
    for (size_t cost = 1; cost < options_.costs.size(); ++cost)
      if (spread(cost).mean > spread(best).mean) best = cost;
    const Spread s = spread(best);
    const std::string name = fmt::format("{}shot_mean_ap", options_.shots[k]);
    result.values.insert(result.values.end(), {{name, s.mean},
                                               {name + "_min", s.least},
                                               {name + "_max", s.most},
                                               {name + "_std", s.deviation}});
    if (options_.costs.size() > 1)
      result.values.emplace_back(fmt::format("{}shot_cost", options_.shots[k]),
                                 options_.costs[best]);
  }

  LowShotSvmOptions options_;
};

std::vector<Metric> LowShotSvmOptions::metrics() const {
  std::vector<Metric> out;
  for (int64_t k : shots) {
    const std::string name = fmt::format("{}shot_mean_ap", k);
    for (const auto& [suffix, what] :
         {std::pair{"", "mean"}, {"_min", "smallest"}, {"_max", "largest"}, {"_std", "deviation"}})
      out.push_back({name + suffix, "1",
                     fmt::format("{} over the choices of images of the mean average precision with "
                                 "{} images of each class",
                                 what, k)});
    if (costs.size() > 1)
      out.push_back({fmt::format("{}shot_cost", k), "1", "the cost of these machines"});
  }
  return out;
}

}  // namespace

Registered svm_low_shot_row() {
  return feature_row<LowShotSvm, LowShotSvmOptions>(
      "svm_low_shot",
      "mean average precision of linear support vector machines that are fitted to a few images of "
      "each class");
}

}  // namespace eval
