// SPDX-License-Identifier: Apache-2.0
#include "eval/feature_evaluator.hpp"

namespace eval {

void FeatureOptions::bind_train_data(config::Table& t, std::string_view doc) {
  t.key("train_data", train_data, doc).required().on_resume(config::OnResume::may_change);
}

void FeatureOptions::bind_tap(config::Table& t) {
  t.key("tap", tap,
        "features of an image, as extract.taps names them; \"\" = the vector that a head reads")
      .on_resume(config::OnResume::may_change);
}

void FeatureEvaluator::check(const data::Dataset& set) const {
  if (set.size() == 0)
    base::fail(base::Exit::data, "[data.{}] holds no example for {}; name a set that has some",
               set.name(), purpose_);
}

bool fit_on_ranks(const Context& context, const std::string& stage, int64_t n, int64_t numbers,
                  const std::function<void(int64_t i, std::span<double> to)>& fit,
                  std::vector<double>& all) {
  all.assign(size_t(n * numbers), 0.0);
  auto part = [&](int64_t i) { return std::span(all.begin() + i * numbers, size_t(numbers)); };
  Journal* journal = context.journal;
  auto restore = [&](int64_t i, std::string_view bytes) { copy_values(bytes, part(i)); };
  const int64_t known = journal ? journal->begin(stage, n, restore) : 0;
  for (int64_t first = known; first < n; first += context.world.size()) {
    if (context.interrupted()) return false;
    const int64_t i = first + context.world.rank();
    if (i >= n) continue;
    fit(i, part(i));
    if (!journal) continue;
    journal->add(i, std::span<const double>(part(i)));
    journal->write();
  }
  share_values(context.world, all);
  return true;
}

bool count_hits(const Context& context,
                const std::function<int64_t(size_t i, const float* features)>& predict,
                std::vector<double>& hits) {
  std::vector<double> of_image(hits.size());
  auto count = [&] {
    for (size_t i = 0; i < hits.size(); ++i) hits[i] += of_image[i];
  };
  const bool complete = embed(
      context, context.dataset, "images",
      [&](int64_t, std::string_view bytes) {
        copy_values(bytes, std::span(of_image));
        count();
      },
      [&](const Embedded& images) {
        for (int64_t i = 0; i < images.count; ++i) {
          const float* features = images.features + i * feature_count(context);
          const int64_t label = label_of(context.dataset, images.batch, i);
          of_image.back() = 0;
          for (size_t p = 0; p < hits.size() - 1; ++p) {
            const int64_t predicted = predict(p, features);
            of_image[p] = predicted == label;
            of_image.back() += predicted < 0;
          }
          count();
          if (context.journal)
            context.journal->add(images.first + i, std::span<const double>(of_image));
        }
      });
  if (complete) share_values(context.world, hits);  // whole numbers, so the sum is exact
  return complete;
}

}  // namespace eval
