// SPDX-License-Identifier: Apache-2.0
// Recorded evaluations of features (ssl.md 8): nearest neighbours, support vector machines and
// logistic regression.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "eval/class_metrics.hpp"
#include "eval/features/neighbours.hpp"
#include "eval/fits/dense.hpp"
#include "eval/fits/linear_svm.hpp"
#include "recorded_features.hpp"
#include "ssl_case.hpp"

namespace golden {
namespace {

// Two similarities or scores closer than this, relatively, may come in either order.
constexpr double kTie = 1e-12;

class Evaluation : public SslCase {
 public:
  Evaluation(const CaseFile& file, comm::Comm& world)
      : file_(file), world_(world), train_(read("train")), test_(read("test")) {
    rows_ = {train_.x.data(), train_.features, train_.y,
             1 + int64_t(*std::max_element(train_.y.begin(), train_.y.end()))};
    for (const Recorded* set : {&train_, &test_})
      for (int32_t c : set->y)
        if (c < 0 || c >= rows_.classes) file.fail("inputs", "a label is no class of train_y");
  }

  void run(Report& report) override {
    for (const std::string& group : file_.groups())
      if (group.starts_with("knn")) compare_neighbours(report, group);
    if (file_.has("svm/weights_bias")) compare_machines(report);
    if (file_.has("low_shot_logistic/test_accuracy")) compare_regressions(report);
  }

 private:
  Recorded read(const std::string& part) const {
    const std::string x = "inputs/" + part + "_x", y = "inputs/" + part + "_y";
    const Shape shape = file_.shape(x);
    if (shape.size() != 2 || shape[0] == 0) file_.fail(x, "is not [rows, features]");
    return {shape[1], file_.floats(x, shape), file_.ints(y, {shape[0]})};
  }
  int64_t tests() const { return int64_t(test_.y.size()); }

  // ---- neighbours
  struct Knn {
    double temperature = 0;
    int64_t k = 0;
    int normalise = 0;
  };

  void compare_neighbours(Report& report, const std::string& group) const {
    Knn knn;
    if (std::sscanf(group.c_str(), "knn_T%lf_k%ld_norm%d", &knn.temperature, &knn.k,
                    &knn.normalise) != 3)
      file_.fail(group, "is not named knn_T(temperature)_k(neighbours)_norm(0 or 1)");
    const auto found = eval::NeighbourSearch(rows_, knn.normalise != 0)
                           .find(test_.x.data(), tests(), int64_t(train_.y.size()), 1);
    const auto rows = file_.ints(group + "/neighbours", {tests(), knn.k}),
               ranking = file_.ints(group + "/prediction", {tests(), rows_.classes});
    double possible[2][2] = {};  // class among the first 1 and 5: surely, and perhaps
    for (int64_t i = 0; i < tests(); ++i) {
      const std::vector<eval::Neighbour>& of_image = found[size_t(i)];
      report.require("neighbours", fmt::format("{} image {}", group, i),
                     same_neighbours(of_image, rows.data() + i * knn.k, knn.k),
                     "others are nearer than the recorded ones");
      const std::vector<double> scores = eval::vote(rows_, of_image, knn.k, knn.temperature);
      report.require("ranking of classes", fmt::format("{} image {}", group, i),
                     falls(scores, ranking.data() + i * rows_.classes),
                     "the recorded ranking does not fall by score");
      const double own = scores[size_t(test_.y[size_t(i)])];
      const auto above = double(std::count_if(scores.begin(), scores.end(),
                                              [&](double s) { return s > own * (1 + kTie); }));
      const auto equal = double(std::count_if(scores.begin(), scores.end(), [&](double s) {
        return s >= own * (1 - kTie) && s <= own * (1 + kTie);
      }));
      for (int top : {0, 1}) {
        possible[top][0] += above + equal <= (top ? 5 : 1);
        possible[top][1] += above < (top ? 5 : 1);
      }
    }
    const auto evaluator = make_evaluator(fmt::format(
        "kind = \"knn\"\ntrain_data = \"train\"\nk = [{}]\ntemperature = {:.17e}\nnormalise = {}\n",
        knn.k, knn.temperature, knn.normalise != 0));
    const auto values = evaluate(world_, *evaluator, train_, test_);
    const std::vector<float> want = file_.floats(group + "/top1_top5", {2});
    for (size_t top : {size_t{0}, size_t{1}}) {
      if (top == 1 && rows_.classes < 5) continue;  // the source counts no image then
      const double low = possible[top][0], high = possible[top][1], n = double(tests()),
                   got = values.at(fmt::format("k{}_top{}", knn.k, top ? 5 : 1)) * n;
      const std::string name = fmt::format("{}/top{}", group, top ? 5 : 1);
      report.compare("kNN accuracy", name + ", evaluator", got, std::clamp(got, low, high), 1e-9);
      const double recorded = double(want[top]) * n / 100;
      report.compare("kNN accuracy", name,
                     std::clamp(recorded, std::min(got, low), std::max(got, high)), recorded, 1e-3);
    }
  }

  // True if the recorded rows are the nearest k in some order that equal similarities allow.
  static bool same_neighbours(const std::vector<eval::Neighbour>& found, const int32_t* rows,
                              int64_t k) {
    std::map<int64_t, double> similarity;
    for (const eval::Neighbour& n : found) similarity[n.row] = n.similarity;
    for (int64_t j = 0; j < k; ++j) {
      if (!similarity.count(rows[j])) return false;
      const double own = similarity[rows[j]], at = found[size_t(j)].similarity;
      if (std::abs(own - at) > kTie * std::max(1.0, std::abs(at))) return false;
    }
    return true;
  }
  bool falls(const std::vector<double>& scores, const int32_t* ranking) const {
    std::vector<char> seen(scores.size(), 0);
    for (int64_t c = 0; c < rows_.classes; ++c) {
      if (ranking[c] < 0 || ranking[c] >= rows_.classes || seen[size_t(ranking[c])]++) return false;
      if (c > 0 && scores[size_t(ranking[c])] > scores[size_t(ranking[c - 1])] * (1 + kTie) + kTie)
        return false;
    }
    return true;
  }

  // ---- machines
  void compare_machines(Report& report) const {
    const std::vector<double> costs = file_.numbers("svm/weights_bias", "costs");
    const auto classes = rows_.classes, count = int64_t(costs.size());
    const auto chosen = file_.floats("svm/chosen_cost", {classes});
    const Machines machines{
        costs,
        file_.floats("svm/weights_bias", {classes, count, rows_.features + 1}),
        file_.floats("svm/crossval_ap", {classes, count}),
        file_.floats("svm/test_ap", {classes, count}),
        eval::svm_rows(train_.x.data(), int64_t(train_.y.size()), rows_.features),
        eval::svm_rows(test_.x.data(), tests(), rows_.features)};
    double sum = 0, shown = 0;
    for (int64_t c = 0; c < classes; ++c) {
      double best_cost = 0, best = -1;
      std::optional<double> ap;
      for (int64_t j = 0; j < count; ++j) {
        const Machine one = compare_machine(report, machines, c, j);
        if (one.validated <= best) continue;
        best = one.validated;
        best_cost = costs[size_t(j)];
        ap = one.ap;
      }
      report.compare("SVM cost", fmt::format("svm/chosen_cost class {}", c), best_cost,
                     chosen[size_t(c)], file_.tolerance("svm/chosen_cost"));
      sum += ap.value_or(0);
      shown += double(ap.has_value());
    }
    const auto evaluator =
        make_evaluator(fmt::format("kind = \"svm\"\ntrain_data = \"train\"\ncosts = [{}]\n",
                                   fmt::join(texts_of(costs), ", ")));
    report.compare("SVM mean AP", "the evaluator",
                   evaluate(world_, *evaluator, train_, test_).at("mean_ap"), sum / shown, 1e-12);
  }

  struct Machines {
    std::vector<double> costs;
    std::vector<float> weights, validated, tested;  // recorded, by class, then by cost
    std::vector<double> train, test;                // rows
  };
  struct Machine {
    double validated = 0;
    std::optional<double> ap;  // on the test set, if it shows the class
  };
  Machine compare_machine(Report& report, const Machines& m, int64_t c, int64_t j) const {
    const int64_t width = rows_.features + 1;
    const auto at = size_t(c * int64_t(m.costs.size()) + j);
    const double cost = m.costs[size_t(j)];
    const std::string where = fmt::format("class {} cost {}", c, cost);
    std::vector<char> shows;
    std::vector<int64_t> all;
    for (int32_t label : train_.y) {
      all.push_back(int64_t(all.size()));
      shows.push_back(label == c);
    }
    const std::vector<double> w = eval::fit_svm(m.train, width, all, shows, cost);
    const float* recorded = m.weights.data() + int64_t(at) * width;
    report.compare("SVM weights", "svm/weights_bias " + where, w.data(), recorded, width,
                   file_.tolerance("svm/weights_bias") + gradient_length(m, recorded, shows, cost));
    Machine out{eval::cross_validated(m.train, width, shows, cost), {}};
    report.compare("SVM cross-validation", "svm/crossval_ap " + where, out.validated,
                   m.validated[at], file_.tolerance("svm/crossval_ap"));
    std::vector<double> scores;
    std::vector<float> shown;
    for (int64_t i = 0; i < tests(); ++i) {
      scores.push_back(eval::dot(m.test.data() + i * width, w.data(), width));
      shown.push_back(float(test_.y[size_t(i)] == c));
    }
    out.ap = eval::average_precision(scores.data(), shown.data(), tests());
    if (out.ap)
      report.compare("SVM test AP", "svm/test_ap " + where, *out.ap, m.tested[at],
                     file_.tolerance("svm/test_ap"));
    return out;
  }
  // Returns the length of the objective's gradient at the recorded weights, where a solver stopped.
  // The curvature is at least 1, so the minimiser is at most this far away.
  static double gradient_length(const Machines& m, const float* w, const std::vector<char>& shows,
                                double cost) {
    const int64_t width = int64_t(m.train.size() / shows.size());
    const std::vector<double> weights(w, w + width);
    std::vector<double> gradient = weights;
    for (size_t i = 0; i < shows.size(); ++i) {
      const double* x = m.train.data() + int64_t(i) * width;
      const double t = shows[i] ? 1 : -1,
                   miss = std::max(0.0, 1 - t * eval::dot(x, weights.data(), width)),
                   of_row = -2 * (shows[i] ? 2 * cost : cost) * miss * t;
      for (int64_t f = 0; f < width; ++f) gradient[size_t(f)] += of_row * x[f];
    }
    return std::sqrt(eval::dot(gradient.data(), gradient.data(), width));
  }
  static std::vector<std::string> texts_of(const std::vector<double>& numbers) {
    std::vector<std::string> out;
    for (double n : numbers) out.push_back(fmt::format("{:.17e}", n));
    return out;
  }

  // ---- regressions
  void compare_regressions(Report& report) const {
    const std::string name = "low_shot_logistic/test_accuracy";
    const std::vector<double> strengths = file_.numbers(name, "lambdas");
    const std::vector<float> want = file_.floats(name, {int64_t(strengths.size())});
    for (size_t i = 0; i < strengths.size(); ++i) {
      const auto evaluator = make_evaluator(fmt::format(
          "kind = \"low_shot\"\ntrain_data = \"train\"\nl2_reg = [{:.17e}]\n", strengths[i]));
      const double got = evaluate(world_, *evaluator, train_, test_).at("accuracy");
      report.compare("logistic accuracy", fmt::format("{} lambda {}", name, strengths[i]), got,
                     want[i], file_.tolerance(name));
    }
  }

  const CaseFile& file_;
  comm::Comm& world_;
  Recorded train_, test_;
  eval::LabelledRows rows_;
};

}  // namespace

SslKind ssl_evaluation_kind() {
  return {
      "evaluation",
      [](const CaseFile& file) { return file.has("inputs/train_x") && file.has("inputs/test_x"); },
      [](const CaseFile& file, const Settings&, comm::Mesh& mesh) -> std::unique_ptr<SslCase> {
        return std::make_unique<Evaluation>(file, *mesh.world);
      }};
}

}  // namespace golden
