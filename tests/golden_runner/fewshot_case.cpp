// SPDX-License-Identifier: Apache-2.0
#include "fewshot_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "eval/evaluator.hpp"
#include "eval/fits/least_squares.hpp"
#include "recorded_features.hpp"

namespace golden {
namespace {

// The published code solves in float32. Its weights are off by up to 8e-3 / l2, and so are its
// scores. A test image whose two best scores are closer than this may get another class.
constexpr double kScoreNoise = 0.02;

// One group of the file.
class Probes {
 public:
  Probes(const CaseFile& file, std::string group) : file_(file), group_(std::move(group)) {
    train_ = read("train");
    test_ = read("test");
    rows_ = {train_.x.data(), train_.features, train_.y,
             int64_t(file.number(group_, "num_classes"))};
    l2_ = file.floats(at("l2"), file.shape(at("l2")));
    shots_ = file.ints(at("shots"), file.shape(at("shots")));
    accuracy_shape_ = file.shape(at("accuracy"));
    if (accuracy_shape_.size() != 3 || accuracy_shape_[0] != int64_t(l2_.size()) ||
        accuracy_shape_[2] != int64_t(shots_.size()))
      file.fail(at("accuracy"), "is not [l2, seed, shots]");
    accuracy_ = file.floats(at("accuracy"), accuracy_shape_);
    for (const Recorded* set : {&train_, &test_})
      for (int32_t c : set->y)
        if (c < 0 || c >= rows_.classes) file.fail(group_, "a label is no class");
  }

  void compare_choices(Report& report) const {
    for (int64_t seed = 0; seed < accuracy_shape_[1]; ++seed) {
      const std::string indices = at(fmt::format("seed{}/indices", seed)),
                        per_class = at(fmt::format("seed{}/per_class", seed));
      std::vector<int64_t> mine, sizes;
      for (const auto& of_class : eval::permuted_rows(rows_, uint64_t(seed))) {
        mine.insert(mine.end(), of_class.begin(), of_class.end());
        sizes.push_back(int64_t(of_class.size()));
      }
      const auto want = file_.ints(indices, {int64_t(mine.size())}),
                 want_sizes = file_.ints(per_class, {int64_t(sizes.size())});
      report.compare("permuted rows", indices, mine.data(), want.data(), int64_t(mine.size()), 0);
      report.compare("permuted rows", per_class, sizes.data(), want_sizes.data(),
                     int64_t(sizes.size()), 0);
    }
  }

  void compare_weights(Report& report) const {
    for (int64_t seed = 0; seed < accuracy_shape_[1]; ++seed)
      for (const std::string& set : file_.below(at(fmt::format("seed{}", seed)))) {
        int64_t shots = 0;
        double l2 = 0;
        if (std::sscanf(set.c_str(), "weights_%ldshot_l2_%lf", &shots, &l2) != 2) continue;
        const std::string name = at(fmt::format("seed{}/{}", seed, set));
        const eval::LinearProbe probe = fit(seed, shots, l2);
        const auto want = file_.floats(name, {rows_.features + 1, rows_.classes});
        report.compare("weights", name, probe.weights.data(), want.data(),
                       int64_t(probe.weights.size()), file_.tolerance(name));
      }
  }

  // Runs the evaluator for each l2.
  void compare_accuracies(comm::Comm& world, Report& report) const {
    for (size_t i = 0; i < l2_.size(); ++i) {
      const auto values = evaluate(world, *evaluator(double(l2_[i])), train_, test_);
      for (int64_t seed = 0; seed < accuracy_shape_[1]; ++seed)
        for (size_t s = 0; s < shots_.size(); ++s) {
          const double
              n = double(test_.y.size()),
              want = double(
                  accuracy_[(i * size_t(accuracy_shape_[1]) + size_t(seed)) * shots_.size() + s]);
          const double undecided =
              double(near_ties(fit(seed, shots_[s], double(l2_[i])), kScoreNoise / double(l2_[i])));
          report.compare(
              l2_[i] >= 16 ? "accuracy, l2 >= 16" : "accuracy, l2 < 16",
              fmt::format("{} l2 {} seed {} shots {}", at("accuracy"), l2_[i], seed, shots_[s]),
              values.at(fmt::format("{}shot_seed{}", shots_[s], seed)), want,
              (undecided + 0.5) / n);
        }
    }
  }

 private:
  std::string at(const std::string& name) const { return group_ + "/" + name; }
  Recorded read(const std::string& part) const {
    const Shape shape = file_.shape(at(part + "_x"));
    if (shape.size() != 2) file_.fail(at(part + "_x"), "is not [rows, features]");
    return {shape[1], file_.floats(at(part + "_x"), shape),
            file_.ints(at(part + "_y"), {shape[0]})};
  }
  eval::LinearProbe fit(int64_t seed, int64_t shots, double l2) const {
    return eval::fit_probes(
        rows_, eval::first_of_each(eval::permuted_rows(rows_, uint64_t(seed)), shots), {l2})[0];
  }
  // Counts the test images whose two best scores are closer than `noise`.
  int64_t near_ties(const eval::LinearProbe& probe, double noise) const {
    int64_t count = 0;
    std::vector<double> scores;
    for (size_t i = 0; i < test_.y.size(); ++i) {
      probe.score(test_.x.data() + int64_t(i) * test_.features, scores);
      std::sort(scores.rbegin(), scores.rend());
      count += scores.size() > 1 && scores[0] - scores[1] < noise;
    }
    return count;
  }
  std::unique_ptr<eval::Evaluator> evaluator(double l2) const {
    return make_evaluator(
        fmt::format("kind = \"fewshot\"\ntrain_data = \"train\"\nshots = [{}]\nseeds = {}\nl2_reg "
                    "= [{:.17e}]\n",
                    fmt::join(shots_, ", "), accuracy_shape_[1], l2));
  }

  const CaseFile& file_;
  std::string group_;
  Recorded train_, test_;
  eval::LabelledRows rows_;
  std::vector<float> l2_, accuracy_;
  std::vector<int32_t> shots_;
  Shape accuracy_shape_;
};

}  // namespace

bool holds_probes(const CaseFile& file) {
  const std::vector<std::string> groups = file.groups();
  return std::any_of(groups.begin(), groups.end(), [&](const std::string& group) {
    return file.has(group + "/train_x") && file.has(group + "/accuracy");
  });
}

void run_probes(const CaseFile& file, comm::Comm& world, Report& report) {
  for (const std::string& group : file.groups()) {
    const Probes probes(file, group);
    probes.compare_choices(report);
    probes.compare_weights(report);
    probes.compare_accuracies(world, report);
  }
}

}  // namespace golden
