// SPDX-License-Identifier: Apache-2.0
// Linear probes on the features of a few images of each class (cappa.md 9.5): the share of test
// images whose class a probe predicts.
#include <algorithm>

#include "eval/features/probe_method.hpp"
#include "eval/fits/least_squares.hpp"

namespace eval {
namespace {

// Probes are numbered by shots, then by seed.
struct Fewshot : ProbeMethod<LinearProbe> {
  std::vector<int64_t> shots = {1, 5, 10, 25};
  int64_t seeds = 3;

  Fewshot() { l2 = {1024}; }
  void bind(config::Table& t) override;
  Words words() const override { return {"fewshot", "a probe", "probes", "probes"}; }
  std::vector<Metric> metrics() const override;

  int64_t probes() const override { return int64_t(shots.size()) * seeds; }
  Fitted fit_probe(int64_t probe) const override;
  int64_t bytes_of_fit() const override;
  std::string memory_keys() const override { return "shots, "; }
  std::vector<double> score(const std::vector<double>& places) const override;
};

void Fewshot::bind(config::Table& t) {
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
        "strength of the regularisation; with several values, one fifth of each class (at least "
        "one image) is held out to choose one, then the probe is fitted to all; classes of one "
        "image hold out none, and if nothing is held out, the first value is used")
      .above(0)
      .check([this] { return problem_of_list(l2); })
      .on_resume(may);
  bind_tap(t);
}

std::vector<Metric> Fewshot::metrics() const {
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

Fewshot::Fitted Fewshot::fit_probe(int64_t probe) const {
  const int64_t count = shots[size_t(probe / seeds)];
  const auto permuted = permuted_rows(rows, uint64_t(probe % seeds));
  const double chosen = l2[choose_l2(rows, permuted, count, l2)];
  return {fit_probes(rows, first_of_each(permuted, count), {chosen})[0], chosen};
}

int64_t Fewshot::bytes_of_fit() const {
  const auto all = int64_t(rows.labels.size()), fits = int64_t(l2.size());
  const int64_t most = *std::max_element(shots.begin(), shots.end());
  const int64_t n = std::min(all, rows.classes * std::min(most, all));
  const int64_t width = rows.features + 1, size = std::min(n, width);
  return 8 *
         (2 * n * width + 2 * size * size + n * rows.classes + (fits + 2) * width * rows.classes);
}

std::vector<double> Fewshot::score(const std::vector<double>& places) const {
  const std::vector<double> accuracies = shares(places, images(), {1});
  std::vector<double> values;
  for (size_t probe = 0; probe < accuracies.size();) {
    double sum = 0;
    for (int64_t seed = 0; seed < seeds; ++seed, ++probe) {
      values.push_back(accuracies[probe]);
      if (sweeps()) values.push_back(fitted[probe].l2);
      sum += accuracies[probe];
    }
    values.push_back(sum / double(seeds));
  }
  return values;
}

}  // namespace

Registered fewshot_row() {
  return feature_row<Fewshot>(
      "accuracy of linear probes on the features of a few images of each class");
}

}  // namespace eval
