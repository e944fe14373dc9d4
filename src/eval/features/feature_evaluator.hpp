// SPDX-License-Identifier: Apache-2.0
// The evaluator of features. Its rows are methods (knn.cpp, rankme.cpp, ...). A method fits
// something to the features of one set of images and tests it on another set, or measures the
// features of one set. All ranks embed the images together, and each fits some of the things.
// Values are the same on any number of ranks.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eval/features/labelled_features.hpp"

namespace eval {

// A method fits something to features and applies it to test images. Its first members are its
// keys. Each evaluation works with a copy, which keeps what it has fitted.
struct FeatureMethod : config::Table::Variant {
  std::string train_data, tap;  // train_data: "" = the method reads `data` alone

  void bind_train_data(config::Table& t, std::string_view doc);
  void bind_tap(config::Table& t);

  struct Words {
    std::string kind;    // "fewshot"
    std::string use;     // what images are needed for: "a probe"
    std::string plural;  // what training images are for: "probes"
    std::string things;  // what ranks fit: "probes"
  };
  virtual Words words() const = 0;
  // Returns the metrics of a result, in the result's order.
  virtual std::vector<Metric> metrics() const = 0;
  // Returns the fields that the sets must have.
  virtual Features fields(const models::Model& model) const;
  // Error(Exit::data) if the method cannot use a set.
  virtual void check(const data::Dataset& set) const;
  // Evaluator::needs; features: the width of the tap.
  FeatureNeeds needs(int64_t features, const std::map<std::string, int64_t>& images) const;
  Result run(const Context& of);

 protected:
  // A table keeps answers to each image. answer() writes those to example i of a batch: its label.
  virtual int64_t answers() const { return 1; }
  virtual void answer(const data::Dataset& set, const models::HostBatch& batch, int64_t i,
                      std::span<float> to) const;
  // Bytes that the work on a row needs besides the table.
  virtual int64_t bytes_of_row(int64_t /*features*/) const { return 0; }
  // Bytes of a row that each rank keeps for itself: that it has written the row, and its label.
  virtual int64_t own_bytes_of_row() const {
    return int64_t(sizeof(char)) + (answers() == 1 ? int64_t(sizeof(int32_t)) : 0);
  }
  // Number of rows of each image in a table; random ops of the set draw anew for each row.
  virtual int64_t passes() const { return 1; }
  // The stage of the journal in which all ranks get the features of `data`; "" if they do not.
  virtual std::string test_stage() const { return ""; }

  // The steps of an evaluation, in this order. begin() is called when the tables are complete. It
  // returns the number of things to fit and the count of numbers for each.
  struct Size {
    int64_t things = 0, numbers = 0;
  };
  virtual Size begin() = 0;
  // Writes the numbers of a thing, on one rank. take() gets the numbers of all things.
  virtual void fit(int64_t /*thing*/, std::span<double> /*to*/) const {}
  virtual void take(const std::vector<double>& /*fitted*/) {}
  // Writes `asked` numbers of each test image: [images.count, asked].
  virtual int64_t asked() const { return 0; }
  virtual void predict(const Embedded& /*images*/, std::span<double> /*to*/) const {}
  // Returns the values of the metrics. predicted: [asked, test images]. All ranks call.
  virtual std::vector<double> score(const std::vector<double>& predicted) const = 0;

  const data::Dataset& train_set() const { return *context->further.at("train_data"); }
  int64_t images() const { return context->dataset.size(); }  // number of test images

  const Context* context = nullptr;
  FeatureTable train, test;

 private:
  bool gather(const data::Dataset& set, const std::string& stage, FeatureTable& out);
  bool fit_on_ranks(const Size& size);
  bool predict_images(std::vector<double>& all);
};

// Returns, for each row of `places` and each number n in `top`, the share of images whose class is
// among the first n. places: [rows, images], the number of classes before the image's own. A
// missing place (NaN) makes all shares NaN.
std::vector<double> shares(const std::vector<double>& places, int64_t images,
                           const std::vector<int64_t>& top);

template <class Method>
class FeatureEvaluator : public Evaluator {
 public:
  explicit FeatureEvaluator(const Method& method) : method_(method) {}
  void check(const data::Dataset& set) const override { method_.check(set); }
  Result run(const Context& context) override { return Method(method_).run(context); }
  FeatureNeeds needs(const models::ForwardPass& pass,
                     const std::map<std::string, int64_t>& images) const override {
    return method_.needs(dynamic_cast<const models::EmbedPass&>(pass).taps().at(0).count(), images);
  }

 private:
  const Method method_;
};

// Returns the row of a method.
template <class Method>
Registered feature_row(const std::string& doc) {
  using Variant = config::Table::Variant;
  return {Method().words().kind,
          doc,
          [](const Variant& v) { return dynamic_cast<const FeatureMethod&>(v).metrics(); },
          "turn images into features",
          nullptr,
          [] { return std::shared_ptr<Variant>(std::make_shared<Method>()); },
          [](const Variant& v) -> std::unique_ptr<Evaluator> {
            return std::make_unique<FeatureEvaluator<Method>>(dynamic_cast<const Method&>(v));
          },
          [](const models::Model& model, const Variant& v) {
            return make_tap_pass(model, dynamic_cast<const FeatureMethod&>(v).tap);
          },
          [](const Variant& v) {
            std::map<std::string, std::string> sets;
            const std::string& train = dynamic_cast<const FeatureMethod&>(v).train_data;
            if (!train.empty()) sets["train_data"] = train;
            return sets;
          },
          [](const models::Model& model, const Variant& v, const std::string&) {
            return std::optional(dynamic_cast<const FeatureMethod&>(v).fields(model));
          }};
}

}  // namespace eval
