// SPDX-License-Identifier: Apache-2.0
// Predictions of single examples, as some evaluators can make them. --mode predict writes them.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "config/table.hpp"
#include "data/dataset.hpp"
#include "models/model.hpp"

namespace eval {

// Numbers that a predictor gives for each example.
struct PredictedColumn {
  std::string name;
  device::DType type;          // f32, f64 or i32
  std::vector<int64_t> shape;  // of one example; {} = one number
  std::string unit, doc;
};

class Predictor {
 public:
  virtual ~Predictor() = default;
  virtual std::vector<PredictedColumn> columns() const = 0;
  // Returns the texts of the classes in the order of their numbers; [] if only numbers are known.
  virtual std::vector<std::string> classes() const { return {}; }
  // Returns what the numbers depend on besides model, weights and images, by key.
  virtual std::map<std::string, std::string> made_from() const = 0;
  // Runs the pass. Writes the column of each name, [ctx.batch, shape], to host memory.
  virtual void run(nn::Context& ctx, const models::Inputs& inputs,
                   std::span<const device::View> columns) = 0;
};

// The part of an evaluator's row that makes a predictor.
struct Predicts {
  // Returns problems with the evaluator's keys, by key.
  std::map<std::string, std::string> (*problems)(const config::Table::Variant& options);
  // Returns null if the model lacks the capability.
  std::unique_ptr<models::ForwardPass> (*make_pass)(const models::Model& model,
                                                    const config::Table::Variant& options);
  // `pass` comes from make_pass and outlives the predictor. `top_k` limits lists of likely classes.
  // `texts` is the set whose tokenize turns texts into ids; Error(Exit::data) if the set has no
  // tokenize.
  std::unique_ptr<Predictor> (*make)(const config::Table::Variant& options,
                                     const data::Dataset& texts, models::ForwardPass& pass,
                                     int64_t top_k);
};

}  // namespace eval
