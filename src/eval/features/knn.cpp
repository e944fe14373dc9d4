// SPDX-License-Identifier: Apache-2.0
// Classification by nearest neighbours (ssl.md 8): the share of test images whose class is among
// the first ones by a weighted vote of the most similar training images. Nothing is fitted.
#include <algorithm>
#include <limits>
#include <optional>

#include "eval/features/feature_evaluator.hpp"
#include "eval/features/neighbours.hpp"

namespace eval {
namespace {

struct Knn : FeatureMethod {
  std::vector<int64_t> k = {20}, top = {1, 5};
  double temperature = 0.07;
  bool normalise = true;

  LabelledRows rows;
  std::optional<NeighbourSearch> search;

  void bind(config::Table& t) override;
  Words words() const override { return {"knn", "a vote of neighbours", "neighbours", ""}; }
  std::vector<Metric> metrics() const override;
  void check(const data::Dataset& set) const override;

  Size begin() override {
    rows = labelled_rows(train);
    search.emplace(rows, normalise);
    return {};
  }
  int64_t own_bytes_of_row() const override {
    return FeatureMethod::own_bytes_of_row() + int64_t(sizeof(double));  // a row's length
  }
  int64_t asked() const override { return int64_t(k.size()); }
  void predict(const Embedded& images, std::span<double> places) const override;
  std::vector<double> score(const std::vector<double>& places) const override {
    return shares(places, images(), top);
  }
  int64_t most() const { return *std::max_element(k.begin(), k.end()); }
};

void Knn::bind(config::Table& t) {
  const auto may = config::OnResume::may_change;
  bind_train_data(t,
                  "name of a [data.NAME] table: the images that vote; `data` holds the images that "
                  "are classified");
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
        "similarity: true: the cosine of two feature vectors; false: their dot product, the "
        "default of the published code")
      .on_resume(may);
  t.key("top", top, "an image counts for topN if its class is among the first N by the vote")
      .min(1)
      .check([this] { return problem_of_list(top); })
      .on_resume(may);
  bind_tap(t);
}

std::vector<Metric> Knn::metrics() const {
  std::vector<Metric> out;
  for (int64_t neighbours : k)
    for (int64_t first : top)
      out.push_back({fmt::format("k{}_top{}", neighbours, first), "1",
                     fmt::format("share of the test images whose class is among the first {} by "
                                 "the vote of {} neighbours",
                                 first, neighbours)});
  return out;
}

void Knn::check(const data::Dataset& set) const {
  FeatureMethod::check(set);
  if (set.name() == train_data && set.size() < most())
    base::fail(base::Exit::data,
               "[data.{}] holds {} images, and k asks for {} neighbours; name a larger set in "
               "train_data, or fewer neighbours",
               set.name(), set.size(), most());
}

// Gives each image the place of its class for each k.
void Knn::predict(const Embedded& images, std::span<double> places) const {
  const auto found = search->find(images.features, images.count, most(), context->threads);
  auto place = places.begin();
  for (int64_t i = 0; i < images.count; ++i) {
    const std::vector<Neighbour>& near = found[size_t(i)];
    const int64_t label = label_of(context->dataset, images.batch, i);
    for (int64_t neighbours : k)
      *place++ = near.empty() ? std::numeric_limits<double>::quiet_NaN()
                              : place_of(vote(rows, near, neighbours, temperature), label);
  }
}

}  // namespace

Registered knn_row() {
  return feature_row<Knn>(
      "accuracy of a weighted vote of the nearest training images, by their features");
}

}  // namespace eval
