// SPDX-License-Identifier: Apache-2.0
// Methods with linear support vector machines: their keys, and the classes that images show.
#pragma once

#include "eval/features/feature_evaluator.hpp"

namespace eval {

// Rows that machines read: [rows, features + 1]. The ranks of a node share one copy.
struct SvmRows {
  std::shared_ptr<const comm::NodeBuffer> memory;
  std::span<const double> all;
};

struct SvmMethod : FeatureMethod {
  std::string targets;
  std::vector<double> costs = {0.1, 0.01};
  int64_t num_classes = 0;

  // Binds these keys. The docs say how a cost is chosen and what training does with unknown
  // classes.
  void bind_shared(config::Table& t, const std::string& costs_doc, const std::string& unknown_doc);
  Features fields(const models::Model& model) const override;

 protected:
  // The answer to an image is its label, or its targets.
  int64_t answers() const override { return targets.empty() ? 1 : num_classes; }
  void answer(const data::Dataset& set, const models::HostBatch& batch, int64_t i,
              std::span<float> to) const override;
  int64_t bytes_of_row(int64_t features) const override { return 8 * (features + 1); }
  // Returns the rows of a table in the form that machines read. All ranks call.
  SvmRows rows_of(const FeatureTable& table) const;
  // Returns the number of classes of the training set.
  int64_t count_classes() const {
    return targets.empty() ? labelled_rows(train).classes : num_classes;
  }
  // Returns what is known from an image's answers about class c: positive = the image shows it, 0 =
  // it does not, negative = not known.
  float shows(const float* answers, int64_t c) const {
    return targets.empty() ? float(*answers == float(c)) : answers[c];
  }
};

}  // namespace eval
