// SPDX-License-Identifier: Apache-2.0
// Evaluates linear support vector machines on the model's features (ssl.md 8): the mean over
// classes of the average precision on the test images. All ranks embed both sets. The features of
// the training set are gathered by position; then each rank fits some of the classes. The result is
// the same on any number of ranks.
#include <algorithm>

#include "eval/class_metrics.hpp"
#include "eval/dense.hpp"
#include "eval/linear_svm.hpp"
#include "eval/svm_options.hpp"

namespace eval {
namespace {

struct ValidatedSvmOptions : SvmOptions {
  void bind(config::Table& t) override {
    bind_shared(t,
                "costs of an error; each class takes the one with the best mean average precision "
                "over 3 stratified folds of the training images; among equally good ones the first",
                "training takes as not shown");
  }
  std::vector<Metric> metrics() const {
    return {{"mean_ap", "1",
             "mean over the classes that any test image shows of the average precision of "
             "a machine for this class against all others"}};
  }
  Features fields(const models::Model& model) const { return fields_for(model, "svm"); }
};

class Svm : public FeatureEvaluator {
 public:
  explicit Svm(const ValidatedSvmOptions& options)
      : FeatureEvaluator("a support vector machine"), options_(options) {}

  Result run(const Context& context) override {
    const data::Dataset& train = *context.further.at("train_data");
    const int64_t width = feature_count(context) + 1;
    FeatureTable table;
    if (!options_.gather(context, train, "images for machines", 8 * train.size() * width, table))
      return interrupted();
    const int64_t classes = options_.classes(table);
    const int64_t n = context.dataset.size();
    need_feature_memory(context, train, "", 8 * classes * (width + 1) + 16 * classes * n);
    std::vector<double> weights;                                       // [classes, width]
    std::vector<double> scores(size_t(classes * n)), targets(scores);  // [classes, n]
    if (!fit(context, table, classes, weights) || !test(context, weights, scores, targets))
      return interrupted();
    return {{{"mean_ap", mean_average_precision(context, classes, scores, targets)}}, n, "images"};
  }

 private:
  // Fits the classes, each on one rank.
  bool fit(const Context& context, const FeatureTable& table, int64_t classes,
           std::vector<double>& weights) const {
    const int64_t width = table.features + 1;
    const std::vector<double> x = svm_rows(table.x.data(), table.rows, table.features);
    auto fit_to = [&](int64_t c, std::span<double> to) {
      const std::vector<double> w = fit_class(x, width, shows_class(table, c), context.threads);
      std::copy(w.begin(), w.end(), to.begin());
    };
    return fit_on_ranks(context, "classes", classes, width, fit_to, weights);
  }

  // Returns which training images show class c. Unknown ones count as if they did not.
  std::vector<char> shows_class(const FeatureTable& table, int64_t c) const {
    std::vector<char> shows(size_t(table.rows));
    for (size_t i = 0; i < shows.size(); ++i) shows[i] = options_.shows(table, int64_t(i), c) > 0;
    return shows;
  }

  // Returns the weights for the best cost.
  std::vector<double> fit_class(const std::vector<double>& x, int64_t width,
                                const std::vector<char>& shows, int threads) const {
    size_t best = 0;
    if (options_.costs.size() > 1) {
      std::vector<double> precisions(options_.costs.size());
      for_parts(threads, int64_t(precisions.size()), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          precisions[size_t(i)] = cross_validated(x, width, shows, options_.costs[size_t(i)]);
      });
      best = size_t(std::max_element(precisions.begin(), precisions.end()) - precisions.begin());
    }
    std::vector<int64_t> rows(shows.size());
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = int64_t(i);
    return fit_svm(x, width, rows, shows, options_.costs[best]);
  }

  // Scores the test images, and gives all ranks scores and targets.
  bool test(const Context& context, const std::vector<double>& weights, std::vector<double>& scores,
            std::vector<double>& targets) const {
    const int64_t n = context.dataset.size(), classes = int64_t(scores.size()) / n,
                  width = int64_t(weights.size()) / classes;
    std::vector<double> both(size_t(2 * classes));  // of an image
    auto place = [&](int64_t position) {
      for (int64_t c = 0; c < classes; ++c) {
        scores[size_t(c * n + position)] = both[size_t(c)];
        targets[size_t(c * n + position)] = both[size_t(classes + c)];
      }
    };
    const bool complete = embed(
        context, context.dataset, "images",
        [&](int64_t position, std::string_view bytes) {
          copy_values(bytes, std::span(both));
          place(position);
        },
        [&](const Embedded& images) {
          const std::vector<double> x = svm_rows(images.features, images.count, width - 1);
          for (int64_t i = 0; i < images.count; ++i) {
            for (int64_t c = 0; c < classes; ++c)
              both[size_t(c)] = 0.0 + dot(x.data() + i * width, weights.data() + c * width, width);
            find_targets(context.dataset, images.batch, i, std::span(both).last(size_t(classes)));
            place(images.first + i);
            if (context.journal)
              context.journal->add(images.first + i, std::span<const double>(both));
          }
        });
    if (!complete) return false;
    share_values(context.world, scores);
    share_values(context.world, targets);
    return true;
  }

  void find_targets(const data::Dataset& set, const models::HostBatch& batch, int64_t i,
                    std::span<double> to) const {
    if (options_.targets.empty()) {
      std::fill(to.begin(), to.end(), 0.0);
      const int64_t label = label_of(set, batch, i);
      if (label < int64_t(to.size())) to[size_t(label)] = 1;
      return;
    }
    std::vector<float> values(to.size());
    options_.answer(set, batch, i, values);
    std::copy(values.begin(), values.end(), to.begin());
  }

  // Returns the mean over the classes that a test image shows. The ranks share the work.
  static double mean_average_precision(const Context& context, int64_t classes,
                                       const std::vector<double>& scores,
                                       const std::vector<double>& targets) {
    const int64_t n = context.dataset.size();
    std::vector<double> of_class(size_t(classes), 0.0);  // -1: no image shows it
    for (int64_t c = context.world.rank(); c < classes; c += context.world.size()) {
      const std::vector<float> wanted(targets.begin() + c * n, targets.begin() + (c + 1) * n);
      of_class[size_t(c)] = average_precision(scores.data() + c * n, wanted.data(), n).value_or(-1);
    }
    share_values(context.world, of_class);
    double sum = 0, shown = 0;
    for (double precision : of_class)
      if (precision != -1) {
        sum += precision;
        ++shown;
      }
    return sum / shown;  // NaN if the set shows no class
  }

  ValidatedSvmOptions options_;
};

}  // namespace

Registered svm_row() {
  return feature_row<Svm, ValidatedSvmOptions>(
      "svm", "mean average precision of linear support vector machines on the features");
}

}  // namespace eval
