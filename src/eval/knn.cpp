// SPDX-License-Identifier: Apache-2.0
// Evaluates a classification by nearest neighbours (ssl.md 8): the share of test images whose class
// is among the first ones by a weighted vote of the most similar training images. All ranks embed
// both sets. The features of the training set are gathered by position; then each rank finds the
// neighbours of its own test images. The result is the same on any number of ranks.
#include <algorithm>
#include <cmath>
#include <limits>

#include "eval/feature_evaluator.hpp"
#include "eval/neighbours.hpp"

namespace eval {
namespace {

struct KnnOptions : FeatureOptions {
  std::vector<int64_t> k = {20}, top = {1, 5};
  double temperature = 0.07;
  bool normalise = true;
  void bind(config::Table& t) override;

  std::vector<Metric> metrics() const;
  Features fields(const models::Model& model) const {
    return labelled_images(model, "eval kind knn");
  }
  int64_t most() const { return *std::max_element(k.begin(), k.end()); }
};

void KnnOptions::bind(config::Table& t) {
  const auto may = config::OnResume::may_change;
  bind_train_data(t,
                  "name of a [data.NAME] table: the images that vote; `data` holds the images that "
                  "they are asked about");
  t.key("k", k,
        "neighbours that vote; the published default is 200, recipes of large models use 20")
      .min(1)
      .unit("images")
      .check([this] { return problem_of_list(k); })
      .on_resume(may);
  t.key("temperature", temperature,
        "a neighbour's weight is exp(similarity / temperature); the published default is 0.1")
      .above(0)
      .on_resume(may);
  t.key("normalise", normalise,
        "similarity: true: the cosine of two feature vectors; false: their dot product, as "
        "published code has it by default")
      .on_resume(may);
  t.key("top", top, "an image counts for topN if its class is among the first N by the vote")
      .min(1)
      .check([this] { return problem_of_list(top); })
      .on_resume(may);
  bind_tap(t);
}

class Knn : public FeatureEvaluator {
 public:
  explicit Knn(const KnnOptions& options)
      : FeatureEvaluator("a vote of neighbours"), options_(options) {}

  void check(const data::Dataset& set) const override {
    FeatureEvaluator::check(set);
    if (set.name() == options_.train_data && set.size() < options_.most())
      base::fail(base::Exit::data,
                 "[data.{}] holds {} images, and k asks for {} neighbours; name a larger set in "
                 "train_data, or fewer neighbours",
                 set.name(), set.size(), options_.most());
  }

  Result run(const Context& context) override {
    FeatureTable table;
    if (!gather_features(context, *context.further.at("train_data"), "images for neighbours", 1,
                         answer_label, 0, table))
      return interrupted();
    // Images by k, then by top; the last count is of images without finite similarities.
    std::vector<double> hits(options_.k.size() * options_.top.size() + 1, 0.0);
    if (!test(context, labelled_rows(table), hits)) return interrupted();
    Result result{{}, context.dataset.size(), "images"};
    size_t at = 0;
    for (int64_t k : options_.k)
      for (int64_t top : options_.top) {
        const double share = hits[at++] / double(result.examples);
        result.values.emplace_back(
            fmt::format("k{}_top{}", k, top),
            hits.back() > 0 ? std::numeric_limits<double>::quiet_NaN() : share);
      }
    return result;
  }

 private:
  bool test(const Context& context, const LabelledRows& rows, std::vector<double>& hits) const {
    const NeighbourSearch search(rows, options_.normalise);
    std::vector<double> places(options_.k.size());  // of an image's own class, by k
    auto count = [&] {
      hits.back() += std::isnan(places[0]);
      for (size_t i = 0; i < hits.size() - 1; ++i)
        hits[i] += places[i / options_.top.size()] < double(options_.top[i % options_.top.size()]);
    };
    const bool complete = embed(
        context, context.dataset, "images",
        [&](int64_t, std::string_view bytes) {
          copy_values(bytes, std::span(places));
          count();
        },
        [&](const Embedded& images) {
          const auto found =
              search.find(images.features, images.count, options_.most(), context.threads);
          for (int64_t i = 0; i < images.count; ++i) {
            const int64_t label = label_of(context.dataset, images.batch, i);
            for (size_t j = 0; j < places.size(); ++j)
              places[j] =
                  found[size_t(i)].empty()
                      ? std::numeric_limits<double>::quiet_NaN()
                      : place_of(vote(rows, found[size_t(i)], options_.k[j], options_.temperature),
                                 label);
            count();
            if (context.journal)
              context.journal->add(images.first + i, std::span<const double>(places));
          }
        });
    if (complete) share_values(context.world, hits);  // whole numbers, so the sum is exact
    return complete;
  }

  KnnOptions options_;
};

std::vector<Metric> KnnOptions::metrics() const {
  std::vector<Metric> out;
  for (int64_t neighbours : k)
    for (int64_t first : top)
      out.push_back({fmt::format("k{}_top{}", neighbours, first), "1",
                     fmt::format("share of the test images whose class is among the first {} by "
                                 "the vote of {} neighbours",
                                 first, neighbours)});
  return out;
}

}  // namespace

Registered knn_row() {
  return feature_row<Knn, KnnOptions>(
      "knn", "accuracy of a weighted vote of the nearest training images, by their features");
}

}  // namespace eval
