// SPDX-License-Identifier: Apache-2.0
#include "eval/features/feature_evaluator.hpp"

#include <cmath>
#include <limits>

namespace eval {

void FeatureMethod::bind_train_data(config::Table& t, std::string_view doc) {
  t.key("train_data", train_data, doc).required().on_resume(config::OnResume::may_change);
}

void FeatureMethod::bind_tap(config::Table& t) {
  t.key("tap", tap,
        "features of an image, as extract.taps names them; \"\" = the vector that a head reads")
      .on_resume(config::OnResume::may_change);
}

Features FeatureMethod::fields(const models::Model& model) const {
  return labelled_images(model, "eval kind " + words().kind);
}

void FeatureMethod::check(const data::Dataset& set) const {
  if (set.size() == 0)
    base::fail(base::Exit::data, "[data.{}] holds no example for {}; name a set that has some",
               set.name(), words().use);
}

void FeatureMethod::answer(const data::Dataset& set, const models::HostBatch& batch, int64_t i,
                           std::span<float> to) const {
  to[0] = float(label_of(set, batch, i));
}

FeatureNeeds FeatureMethod::needs(int64_t features,
                                  const std::map<std::string, int64_t>& images) const {
  FeatureNeeds out{.features = features};
  const int64_t trained = train_data.empty() ? 0 : passes() * images.at("train_data"),
                tested = test_stage().empty() ? 0 : passes() * images.at("data");
  out.rows = trained + tested;
  out.node_bytes =
      out.rows * ((features + answers()) * int64_t(sizeof(float)) + bytes_of_row(features));
  out.rank_bytes = out.rows * own_bytes_of_row();
  out.images = out.rows + (asked() > 0 ? images.at("data") : 0);
  return out;
}

// Gives all ranks the table of a set. Returns false if the run must stop, as the functions below
// do.
bool FeatureMethod::gather(const data::Dataset& set, const std::string& stage, FeatureTable& out) {
  const int64_t rows = passes() * set.size(), width = feature_count(*context);
  const int64_t numbers = width + answers();
  need_feature_memory(*context, set, passes() > 1 ? "views, " : "",
                      rows * (numbers * int64_t(sizeof(float)) + bytes_of_row(width)));
  out = FeatureTable(*context, rows, width, answers());
  auto make = [&](const Embedded& images, std::span<float> to) {
    for (int64_t i = 0; i < images.count; ++i) {
      const std::span<float> of_image = to.subspan(size_t(i * numbers), size_t(numbers));
      std::copy_n(images.features + i * width, width, of_image.begin());
      answer(set, images.batch, i, of_image.subspan(size_t(width)));
      for (float& v : of_image) v += 0.0f;  // turns -0 into 0, as a sum over ranks does
    }
  };
  auto place = [&](int64_t position, std::span<const float> of_image) {
    out.write(position, of_image.data());
  };
  if (!embed<float>(*context, set, stage, passes(), numbers, make, place)) return false;
  out.share(context->world);
  refuse_nonfinite(*context, set, out);
  return true;
}

// Fits things, each on one rank, as a stage of the journal.
bool FeatureMethod::fit_on_ranks(const Size& size) {
  const int64_t n = size.things, numbers = size.numbers;
  if (n == 0) return true;
  std::vector<double> all(size_t(n * numbers), 0.0);
  auto part = [&](int64_t i) {
    return std::span(all).subspan(size_t(i * numbers), size_t(numbers));
  };
  Journal* journal = context->journal;
  auto restore = [&](int64_t i, std::string_view bytes) { copy_values(bytes, part(i)); };
  const int64_t known = journal ? journal->begin(words().things, n, restore) : 0;
  for (int64_t first = known; first < n; first += context->world.size()) {
    if (context->interrupted()) return false;
    const int64_t i = first + context->world.rank();
    if (i >= n) continue;
    fit(i, part(i));
    if (!journal) continue;
    journal->add(i, std::span<const double>(part(i)));
    journal->write();
  }
  share_values(context->world, all);
  take(all);
  return true;
}

// Computes numbers of the test images, as a stage of the journal. All ranks get the numbers of all
// images.
bool FeatureMethod::predict_images(std::vector<double>& all) {
  const int64_t n = images(), numbers = asked();
  if (numbers == 0) return true;
  all.assign(size_t(n * numbers), 0.0);
  auto make = [&](const Embedded& images, std::span<double> to) { predict(images, to); };
  auto place = [&](int64_t position, std::span<const double> of_image) {
    for (int64_t k = 0; k < numbers; ++k) all[size_t(k * n + position)] = of_image[size_t(k)] + 0.0;
  };
  if (!embed<double>(*context, context->dataset, "images", 1, numbers, make, place)) return false;
  share_values(context->world, all);
  return true;
}

Result FeatureMethod::run(const Context& of) {
  context = &of;
  std::vector<double> predicted;
  const bool complete =
      (train_data.empty() || gather(train_set(), "images for " + words().plural, train)) &&
      (test_stage().empty() || gather(context->dataset, test_stage(), test)) &&
      fit_on_ranks(begin()) && predict_images(predicted);
  if (!complete) return {.values = {}, .examples = 0, .interrupted = true};
  const std::vector<double> values = score(predicted);
  const std::vector<Metric> named = metrics();
  CHECK(values.size() == named.size(), "{} values of {} metrics", values.size(), named.size());
  Result result{{}, images(), "images"};
  for (size_t i = 0; i < values.size(); ++i) result.values.emplace_back(named[i].name, values[i]);
  return result;
}

std::vector<double> shares(const std::vector<double>& places, int64_t images,
                           const std::vector<int64_t>& top) {
  std::vector<double> out;
  const bool missing = std::ranges::any_of(places, [](double place) { return std::isnan(place); });
  for (auto row = places.begin(); row != places.end(); row += images)
    for (int64_t first : top) {
      const auto hits =
          std::count_if(row, row + images, [&](double place) { return place < double(first); });
      out.push_back(missing ? std::numeric_limits<double>::quiet_NaN()
                            : double(hits) / double(images));
    }
  return out;
}

}  // namespace eval
