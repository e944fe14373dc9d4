// SPDX-License-Identifier: Apache-2.0
// The common parts of evaluators with linear support vector machines: their keys, and the classes
// that images show.
#pragma once

#include "eval/feature_evaluator.hpp"

namespace eval {

struct SvmOptions : FeatureOptions {
  std::string targets;
  std::vector<double> costs = {0.1, 0.01};
  int64_t num_classes = 0;
  // Binds these keys. The docs say how a cost is chosen and what training makes of unknown classes.
  void bind_shared(config::Table& t, const std::string& costs_doc, const std::string& unknown_doc);

  // Returns the number of values that answer to an image: its label, or its targets.
  int64_t answers() const { return targets.empty() ? 1 : num_classes; }
  // Writes these values for example i of a batch.
  void answer(const data::Dataset& set, const models::HostBatch& batch, int64_t i,
              std::span<float> to) const;
  // Embeds a set as gather_features does.
  bool gather(const Context& context, const data::Dataset& set, const std::string& stage,
              int64_t further_bytes, FeatureTable& out) const;
  // Returns the number of classes of a training set.
  int64_t classes(const FeatureTable& table) const;
  // Returns what image i of a table is known to show of class c: positive = shown, 0 = not,
  // negative = not known.
  float shows(const FeatureTable& table, int64_t i, int64_t c) const;
  // Returns the fields of the images. `kind` names the evaluator in errors.
  Features fields_for(const models::Model& model, const std::string& kind) const;
};

}  // namespace eval
