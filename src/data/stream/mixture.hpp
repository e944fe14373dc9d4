// SPDX-License-Identifier: Apache-2.0
// The stream that a loader reads: one data set in its order, or several interleaved by weight. A
// pure function maps a position to data set and sample, so resuming at any position costs nothing.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.hpp"
#include "data/stream/order.hpp"
#include "data/stream/proportions.hpp"

namespace data {

class Mixture {
 public:
  struct Part {
    std::shared_ptr<const Dataset> dataset;
    Order order;  // order of the data set's own stream, with every sample once per epoch
  };
  struct Item {
    int part;
    int64_t index;  // index in the part's data set
  };

  // Reads one data set, which must outlive the mixture.
  Mixture(const Dataset& dataset, Order order);
  // Mixes one part for each weight, matched by name. Throws Error(Exit::config) if two parts do not
  // yield the same fields.
  Mixture(const std::map<std::string, Part>& parts, const std::map<std::string, double>& weights);

  Item at(int64_t position) const;
  // Returns the number of examples among the first `positions` that come from the part.
  int64_t seen(int part, int64_t positions) const { return proportions_.seen(part, positions); }

  const std::vector<Part>& parts() const { return parts_; }
  const Dataset& dataset(int part) const { return *parts_[size_t(part)].dataset; }
  const Proportions& proportions() const { return proportions_; }
  // Number of samples of all data sets together. This is an epoch of a mixture, as published.
  int64_t size() const;
  // First position at which one of the data sets begins anew: the end of the input for runs that
  // read no sample twice.
  int64_t end() const;
  const Spec& spec() const { return parts_[0].dataset->spec(); }
  std::string name() const;     // "coco", "coco + laion"
  std::string summary() const;  // for the log

 private:
  std::vector<Part> parts_;
  Proportions proportions_;
};

// Returns why samples of the two specs cannot share a batch ("field 'labels' is i32 [12] in the
// first, i32 [24] in the second"), or "". The range of ids is not compared: each data set is
// checked against the model.
std::string spec_difference(const Spec& one, const Spec& other);

}  // namespace data
