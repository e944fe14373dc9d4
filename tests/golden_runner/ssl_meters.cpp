// SPDX-License-Identifier: Apache-2.0
// Recorded meters (ssl.md 7): shares of right classes among the best k, and average precisions.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "eval/class_metrics.hpp"
#include "recorded_features.hpp"
#include "ssl_case.hpp"

namespace golden {
namespace {

const std::string kAccuracy = "accuracy_list_meter", kMeanAp = "mean_ap_list_meter",
                  kOneVsRest = "average_precision/one_vs_rest", kRecall = "recall_at_k_list_meter";

// The tolerance of average precisions. Files lack one for all classes, and hold NaN where no image
// shows a class.
constexpr double kTolerance = 1e-6;

// A way to count the best k classes: the recorded group, and the evaluator's name for it.
struct Meter {
  std::string group, metric, key;
};
const std::vector<Meter> kMeters = {
    {kAccuracy, "top{}", "k"},
    {"precision_at_k_list_meter", "precision_at_{}", "precision_at"},
    {kRecall, "recall_at_{}", "recall_at"}};

// The values that orders of equal scores allow.
struct Range {
  double low, high;
  double nearest(double value) const { return std::max(low, std::min(value, high)); }
};

// Returns the range of average precision. Our evaluator ranks equal scores together, which gives
// the lowest value. The highest value ranks them one by one, images that show the class first.
Range average_precisions(const std::vector<float>& scores, const std::vector<float>& targets) {
  const auto n = int64_t(scores.size());
  const std::optional<double> ours = eval::average_precision(scores.data(), targets.data(), n);
  if (!ours) return {-1, -1};
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : targets[a] > targets[b];
  });
  std::vector<float> places(scores.size());
  for (size_t i = 0; i < order.size(); ++i) places[order[i]] = -float(i);
  return {*ours, *eval::average_precision(places.data(), targets.data(), n)};
}

class Meters : public SslCase {
 public:
  Meters(const CaseFile& file, comm::Comm& world) : file_(file), world_(world) {
    const Shape shape = file.shape("inputs/scores");
    if (shape.size() != 2) file.fail("inputs/scores", "is not [rows, classes]");
    rows_ = shape[0];
    classes_ = shape[1];
    scores_ = file.floats("inputs/scores", shape);
    labels_ = file.ints("inputs/label", {rows_});
    for (int32_t label : labels_)
      if (label < 0 || label >= classes_) file.fail("inputs/label", "a label is no class");
  }

  void run(Report& report) override {
    for (const Meter& meter : kMeters)
      for (const std::string& set : file_.below(meter.group)) {
        if (set == "single") compare(report, meter, set, scores_, one_hot());
        if (set == "multi") compare(report, meter, set, scores_, read_targets("multi"));
      }
    if (file_.has(kAccuracy + "/ties")) compare_ties(report);
    if (file_.has(kMeanAp + "/AP")) compare_mean_ap(report);
    if (file_.has(kOneVsRest)) compare_one_vs_rest(report);
  }

 private:
  std::vector<float> one_hot() const {
    std::vector<float> out(scores_.size(), 0.0f);
    for (size_t i = 0; i < labels_.size(); ++i) out[i * size_t(classes_) + size_t(labels_[i])] = 1;
    return out;
  }
  std::vector<float> read_targets(const std::string& name) const {
    const std::vector<int32_t> known = file_.ints("inputs/" + name, {rows_, classes_});
    return {known.begin(), known.end()};
  }
  std::vector<int64_t> counts_of(const std::string& name) const {
    const std::vector<double> k = file_.numbers(name, "topk");
    return {k.begin(), k.end()};
  }
  std::map<std::string, double> evaluated(const std::string& keys, const std::vector<float>& scores,
                                          const std::vector<float>& targets) const {
    const auto evaluator =
        make_evaluator("kind = \"classification\"\ntargets = \"targets\"\n" + keys);
    return evaluate_scores(world_, *evaluator, {classes_, scores, labels_, targets});
  }
  // The published meters round the share to 6 digits and give it in percent.
  static double percent(double share) { return 100 * std::round(share * 1e6) / 1e6; }

  // Returns the values of a meter that orders of equal scores within a row allow, in percent.
  Range allowed(const Meter& meter, const std::vector<float>& scores,
                const std::vector<float>& targets, int64_t k) const {
    Range counts{0, 0};
    double positives = 0;
    for (int64_t i = 0; i < rows_; ++i) {
      const Range hits = hits_of(scores.data() + i * classes_, targets.data() + i * classes_, k);
      const bool any = meter.group == kAccuracy;  // one right class is enough
      counts.low += any ? std::min(hits.low, 1.0) : hits.low;
      counts.high += any ? std::min(hits.high, 1.0) : hits.high;
      positives += double(
          std::count(targets.begin() + i * classes_, targets.begin() + (i + 1) * classes_, 1.0f));
    }
    const double all = meter.group == kAccuracy ? double(rows_)
                       : meter.group == kRecall ? positives
                                                : double(k * rows_);
    return {percent(counts.low / all), percent(counts.high / all)};
  }
  // Returns how many right classes may be among the best k of a row.
  Range hits_of(const float* scores, const float* targets, int64_t k) const {
    std::vector<float> sorted(scores, scores + classes_);
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    const float last = sorted[size_t(std::min(k, classes_) - 1)];
    double above = 0, right_above = 0, right = 0, equal = 0;
    for (int64_t c = 0; c < classes_; ++c) {
      above += scores[c] > last;
      right_above += scores[c] > last && targets[c] == 1;
      equal += scores[c] == last;
      right += scores[c] == last && targets[c] == 1;
    }
    const double places = double(std::min(k, classes_)) - above;
    return {right_above + std::max(0.0, places - (equal - right)),
            right_above + std::min(right, places)};
  }

  void compare(Report& report, const Meter& meter, const std::string& set,
               const std::vector<float>& scores, const std::vector<float>& targets) const {
    const std::string name = meter.group + "/" + set;
    const std::vector<int64_t> k = counts_of(name);
    const auto values =
        evaluated(fmt::format("{} = [{}]\n", meter.key, fmt::join(k, ", ")), scores, targets);
    const std::vector<float> want = file_.floats(name, {int64_t(k.size())});
    for (size_t i = 0; i < k.size(); ++i) {
      const double got = percent(values.at(fmt::format(fmt::runtime(meter.metric), k[i])));
      const Range range = allowed(meter, scores, targets, k[i]);
      const std::string what = fmt::format("{} k {}", name, k[i]);
      report.compare(meter.group, what + ", the evaluator", got, range.nearest(got), 1e-9);
      // Without equal scores the range is one value.
      report.compare(meter.group, what, range.nearest(want[i]), want[i], file_.tolerance(name));
    }
  }

  void compare_ties(Report& report) const {
    const std::string name = kAccuracy + "/ties";
    const std::vector<int64_t> k = counts_of(name);
    const std::vector<float> scores = file_.floats("inputs/scores_ties", {rows_, classes_});
    const auto values = evaluated(fmt::format("k = [{}]\n", fmt::join(k, ", ")), scores, one_hot());
    const auto n = int64_t(k.size());
    const std::vector<float> range = file_.floats(name + "_range", {2, n});
    for (int64_t i = 0; i < n; ++i) {
      const double got = percent(values.at(fmt::format("top{}", k[size_t(i)])));
      const Range allowed{range[size_t(i)], range[size_t(n + i)]};
      report.compare("accuracy with ties", fmt::format("{} k {}", name, k[size_t(i)]), got,
                     allowed.nearest(got), file_.tolerance(name + "_range"));
    }
  }

  std::vector<float> column(const std::vector<float>& values, int64_t c) const {
    std::vector<float> out;
    for (int64_t i = 0; i < rows_; ++i) out.push_back(values[size_t(i * classes_ + c)]);
    return out;
  }

  void compare_mean_ap(Report& report) const {
    const std::vector<float> targets = read_targets("multi_unknown"),
                             want = file_.floats(kMeanAp + "/AP", {classes_});
    Range mean{0, 0};
    double shown = 0;
    for (int64_t c = 0; c < classes_; ++c) {
      const double recorded = want[size_t(c)];
      const Range ap = average_precisions(column(scores_, c), column(targets, c));
      report.compare("average precision", fmt::format("{}/AP class {}", kMeanAp, c),
                     ap.nearest(recorded), recorded, kTolerance);
      if (ap.low < 0) continue;
      mean.low += ap.low;
      mean.high += ap.high;
      ++shown;
    }
    const double recorded = file_.floats(kMeanAp + "/mAP", {})[0],
                 got = evaluated("mean_ap = true\n", scores_, targets).at("mean_ap");
    report.compare("mean average precision", "the evaluator", got, mean.low / shown, 1e-12);
    const Range percents{100 * got, 100 * mean.high / shown};
    report.compare("mean average precision", kMeanAp + "/mAP", percents.nearest(recorded), recorded,
                   100 * kTolerance);
  }

  void compare_one_vs_rest(Report& report) const {
    const std::vector<float> targets = one_hot(), want = file_.floats(kOneVsRest, {classes_});
    for (int64_t c = 0; c < classes_; ++c) {
      const std::vector<float> shows = column(targets, c);
      if (std::count(shows.begin(), shows.end(), 1.0f) == 0) continue;  // the source divides by 0
      const double recorded = want[size_t(c)];
      report.compare("average precision", fmt::format("{} class {}", kOneVsRest, c),
                     average_precisions(column(scores_, c), shows).nearest(recorded), recorded,
                     kTolerance);
    }
  }

  const CaseFile& file_;
  comm::Comm& world_;
  int64_t rows_ = 0, classes_ = 0;
  std::vector<float> scores_;
  std::vector<int32_t> labels_;
};

}  // namespace

SslKind ssl_meters_kind() {
  return {"meters",
          [](const CaseFile& file) {
            return file.has("inputs/scores") && (file.has(kMeanAp) || file.has(kAccuracy));
          },
          [](const CaseFile& file, const Settings&, comm::Mesh& mesh) -> std::unique_ptr<SslCase> {
            return std::make_unique<Meters>(file, *mesh.world);
          }};
}

}  // namespace golden
