// SPDX-License-Identifier: Apache-2.0
// Linear support vector machines on the features (ssl.md 8), one for each class: the mean over
// classes of the average precision on the test images.
#include <algorithm>
#include <numeric>

#include "eval/class_metrics.hpp"
#include "eval/features/svm_method.hpp"
#include "eval/fits/dense.hpp"
#include "eval/fits/linear_svm.hpp"

namespace eval {
namespace {

struct Svm : SvmMethod {
  int64_t classes = 0, width = 0;  // width: features and the constant 1
  SvmRows x;
  std::vector<double> weights;  // [classes, width]

  void bind(config::Table& t) override {
    bind_shared(t,
                "costs of an error; each class uses the cost with the best mean average precision "
                "over 3 stratified folds of the training images, the first of equally good ones",
                "training treats it as not shown, and the test of that class leaves out the image");
  }
  Words words() const override {
    return {"svm", "a support vector machine", "machines", "classes"};
  }
  std::vector<Metric> metrics() const override {
    return {{"mean_ap", "1",
             "mean over the classes that any test image shows of the average precision of "
             "a machine for this class against all others"}};
  }

  Size begin() override;
  void fit(int64_t c, std::span<double> to) const override;
  void take(const std::vector<double>& all) override {
    weights = all;
    x = {};
  }
  // An image has a score and a target for each class, scores first.
  int64_t asked() const override { return 2 * classes; }
  void predict(const Embedded& images, std::span<double> to) const override;
  std::vector<double> score(const std::vector<double>& predicted) const override;
};

Svm::Size Svm::begin() {
  classes = count_classes();
  width = train.features + 1;
  need_feature_memory(*context, train_set(), "",
                      8 * classes * (width + 1) + 16 * classes * images());
  x = rows_of(train);
  return {classes, width};
}

// Fits with the best cost. Images for which the class is not known count as not showing it.
void Svm::fit(int64_t c, std::span<double> to) const {
  std::vector<char> shown(size_t(train.rows));
  for (size_t i = 0; i < shown.size(); ++i) shown[i] = shows(train.answers_of(int64_t(i)), c) > 0;
  size_t best = 0;
  if (costs.size() > 1) {
    std::vector<double> precisions(costs.size());
    for_parts(context->threads, int64_t(costs.size()), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        precisions[size_t(i)] = cross_validated(x.all, width, shown, costs[size_t(i)]);
    });
    best = size_t(std::ranges::max_element(precisions) - precisions.begin());
  }
  std::vector<int64_t> rows(shown.size());
  std::iota(rows.begin(), rows.end(), 0);
  std::ranges::copy(fit_svm(x.all, width, rows, shown, costs[best]), to.begin());
}

void Svm::predict(const Embedded& images, std::span<double> to) const {
  const std::vector<double> rows = svm_rows(images.features, images.count, width - 1);
  std::vector<float> known(static_cast<size_t>(answers()));
  auto at = to.begin();
  for (int64_t i = 0; i < images.count; ++i) {
    answer(context->dataset, images.batch, i, known);
    for (int64_t c = 0; c < classes; ++c)
      *at++ = dot(rows.data() + i * width, weights.data() + c * width, width);
    for (int64_t c = 0; c < classes; ++c) *at++ = shows(known.data(), c);
  }
}

// The ranks share the work.
std::vector<double> Svm::score(const std::vector<double>& predicted) const {
  const int64_t n = images();
  std::vector<double> of_class(size_t(classes), 0.0);  // -1: no image shows it
  for (int64_t c = context->world.rank(); c < classes; c += context->world.size()) {
    const double *scores = predicted.data() + c * n, *wanted = scores + classes * n;
    const std::vector<float> of_images(wanted, wanted + n);
    of_class[size_t(c)] = average_precision(scores, of_images.data(), n).value_or(-1);
  }
  share_values(context->world, of_class);
  double sum = 0, shown = 0;
  for (double precision : of_class)
    if (precision != -1) {
      sum += precision;
      ++shown;
    }
  return {sum / shown};  // NaN if the set shows no class
}

}  // namespace

Registered svm_row() {
  return feature_row<Svm>(
      "mean average precision of linear support vector machines on the features");
}

}  // namespace eval
