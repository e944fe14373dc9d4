// SPDX-License-Identifier: Apache-2.0
// Linear support vector machines that are fitted to a few images of each class (ssl.md 8): the mean
// over classes of the average precision on the test images, with several choices of images. Each
// rank fits and tests some of the machines.
#include <algorithm>
#include <cmath>

#include "base/numpy_random.hpp"
#include "eval/class_metrics.hpp"
#include "eval/features/svm_method.hpp"
#include "eval/fits/dense.hpp"
#include "eval/fits/linear_svm.hpp"

namespace eval {
namespace {

using Choice = std::vector<std::vector<int64_t>>;  // by class: rows that show it, in random order

// Sets of machines are numbered by shots, then by cost, then by seed.
struct LowShotSvm : SvmMethod {
  std::vector<int64_t> shots = {1, 2, 4, 8, 16, 32, 64, 96};
  int64_t seeds = 5;

  SvmRows x, x_test;
  std::vector<Choice> choices;     // by seed
  std::vector<double> precisions;  // of each set of machines

  void bind(config::Table& t) override;
  Words words() const override {
    return {"svm_low_shot", "a support vector machine", "machines", "machines"};
  }
  std::vector<Metric> metrics() const override;

  std::string test_stage() const override { return "images that test machines"; }
  Size begin() override;
  void fit(int64_t i, std::span<double> to) const override {
    const auto of_shots = int64_t(costs.size()) * seeds;
    to[0] = mean_precision(choices[size_t(i % seeds)], shots[size_t(i / of_shots)],
                           costs[size_t(i % of_shots / seeds)]);
  }
  void take(const std::vector<double>& all) override { precisions = all; }
  std::vector<double> score(const std::vector<double>&) const override;

 private:
  Choice choice(int64_t classes, uint64_t seed) const;
  double mean_precision(const Choice& choice, int64_t count, double cost) const;
};

void LowShotSvm::bind(config::Table& t) {
  const auto may = config::OnResume::may_change;
  bind_shared(t,
              "costs of an error; for each number of shots, the cost with the best mean over the "
              "seeds on the test images is reported, as in the published protocol",
              "the fit and the test of that class leave out the image");
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

std::vector<Metric> LowShotSvm::metrics() const {
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

LowShotSvm::Size LowShotSvm::begin() {
  x = rows_of(train);
  x_test = rows_of(test);
  const int64_t classes = count_classes();
  for (int64_t seed = 0; seed < seeds; ++seed) choices.push_back(choice(classes, uint64_t(seed)));
  return {int64_t(shots.size() * costs.size()) * seeds, 1};
}

Choice LowShotSvm::choice(int64_t classes, uint64_t seed) const {
  Choice rows(static_cast<size_t>(classes));
  for (int64_t i = 0; i < train.rows; ++i)
    for (size_t c = 0; c < rows.size(); ++c)
      if (shows(train.answers_of(i), int64_t(c)) > 0) rows[c].push_back(i);
  base::NumpyRandom random(seed);
  for (std::vector<int64_t>& of_class : rows) random.shuffle(of_class);
  return rows;
}

// Returns the mean over the classes that a test image shows.
double LowShotSvm::mean_precision(const Choice& choice, int64_t count, double cost) const {
  const int64_t width = train.features + 1, n = test.rows;
  std::vector<int64_t> chosen = first_of_each(choice, count);
  std::ranges::sort(chosen);  // an image may show several classes
  chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  double sum = 0, shown = 0;
  std::vector<double> scores(static_cast<size_t>(n));
  std::vector<float> wanted(static_cast<size_t>(n));
  for (int64_t c = 0; c < int64_t(choice.size()); ++c) {
    std::vector<int64_t> rows;
    std::vector<char> of_class(size_t(train.rows));
    for (int64_t i : chosen)
      if (const float known = shows(train.answers_of(i), c); known >= 0) {
        rows.push_back(i);
        of_class[size_t(i)] = known > 0;
      }
    const std::vector<double> w = fit_svm(x.all, width, rows, of_class, cost);
    for (int64_t i = 0; i < n; ++i) {
      scores[size_t(i)] = dot(x_test.all.data() + i * width, w.data(), width);
      wanted[size_t(i)] = shows(test.answers_of(i), c);
    }
    const std::optional<double> precision = average_precision(scores.data(), wanted.data(), n);
    sum += precision.value_or(0);
    shown += double(precision.has_value());
  }
  return sum / shown;  // NaN if the set shows no class
}

// Returns four values for each number of shots, at the best cost: mean, smallest, largest and
// deviation over the seeds.
std::vector<double> LowShotSvm::score(const std::vector<double>&) const {
  const auto of = [&](size_t set) {
    return std::span(precisions).subspan(set * size_t(seeds), size_t(seeds));
  };
  const auto mean_of = [&](size_t set) {
    double mean = 0;
    for (double v : of(set)) mean += v / double(seeds);
    return mean;
  };
  std::vector<double> values;
  for (size_t k = 0; k < shots.size(); ++k) {
    const size_t first = k * costs.size();
    size_t best = first;
    for (size_t set = first; set < first + costs.size(); ++set)
      if (mean_of(set) > mean_of(best)) best = set;
    const double mean = mean_of(best);
    double variance = 0;
    for (double v : of(best)) variance += (v - mean) * (v - mean) / double(seeds);
    values.insert(values.end(), {mean, std::ranges::min(of(best)), std::ranges::max(of(best)),
                                 std::sqrt(variance)});
    if (costs.size() > 1) values.push_back(costs[best - first]);
  }
  return values;
}

}  // namespace

Registered svm_low_shot_row() {
  return feature_row<LowShotSvm>(
      "mean average precision of linear support vector machines that are fitted to a few images of "
      "each class");
}

}  // namespace eval
