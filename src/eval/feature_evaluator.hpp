// SPDX-License-Identifier: Apache-2.0
// The common parts of evaluators that fit something to the features of one set of images, and test
// it on those of another: keys, checks, work that ranks divide, and the row.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eval/labelled_features.hpp"

namespace eval {

struct FeatureOptions : config::Table::Variant {
  std::string train_data, tap;

  void bind_train_data(config::Table& t, std::string_view doc);
  void bind_tap(config::Table& t);
};

class FeatureEvaluator : public Evaluator {
 public:
  // `purpose`: the use of the images, for messages.
  explicit FeatureEvaluator(std::string purpose) : purpose_(std::move(purpose)) {}
  void check(const data::Dataset& set) const override;

 protected:
  static Result interrupted() { return {.values = {}, .examples = 0, .interrupted = true}; }

 private:
  std::string purpose_;
};

// Fits n things, each on one rank, as the stage `stage` of the journal: fit(i, to) writes the
// numbers of thing i. All ranks get all numbers: [n, numbers]. Returns false if the run must stop.
bool fit_on_ranks(const Context& context, const std::string& stage, int64_t n, int64_t numbers,
                  const std::function<void(int64_t i, std::span<double> to)>& fit,
                  std::vector<double>& all);

// Counts the test images whose class predict(i, features) returns, by i; the last count is of
// images for which it returns -1. Returns false if the run must stop.
bool count_hits(const Context& context,
                const std::function<int64_t(size_t i, const float* features)>& predict,
                std::vector<double>& hits);

// Returns the row of an evaluator `Kind`. Its options have the members metrics() and fields(model):
// the numbers of a result, and the fields that a set must have.
template <class Kind, class Options>
Registered feature_row(const std::string& name, const std::string& doc) {
  using Variant = config::Table::Variant;
  return {name,
          doc,
          [](const Variant& options) { return dynamic_cast<const Options&>(options).metrics(); },
          "turn images into features",
          nullptr,
          [] { return std::shared_ptr<Variant>(std::make_shared<Options>()); },
          [](const Variant& options) -> std::unique_ptr<Evaluator> {
            return std::make_unique<Kind>(dynamic_cast<const Options&>(options));
          },
          [](const models::Model& model, const Variant& options) {
            return make_tap_pass(model, dynamic_cast<const Options&>(options).tap);
          },
          [](const Variant& options) {
            return std::map<std::string, std::string>{
                {"train_data", dynamic_cast<const Options&>(options).train_data}};
          },
          [](const models::Model& model, const Variant& options, const std::string&) {
            return std::optional(dynamic_cast<const Options&>(options).fields(model));
          }};
}

}  // namespace eval
