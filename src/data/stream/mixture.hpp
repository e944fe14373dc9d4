// SPDX-License-Identifier: Apache-2.0
// The stream that a loader reads: one data set in its order, or several interleaved by weight.
// Position -> data set and sample is a pure function: resuming at any position costs nothing.
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
    Order order;  // of the data set's own stream: every sample once per epoch of that data set
  };
  struct Item {
    int part;
    int64_t index;  // of the part's data set
  };

  // One data set, which must outlive this.
  Mixture(const Dataset& dataset, Order order);
  // By the names of the weights, one each. Error(Exit::config) if two of them do not yield the same
  // fields.
  Mixture(const std::map<std::string, Part>& parts, const std::map<std::string, double>& weights);

  Item at(int64_t position) const;
  // How many of the first `positions` examples come from the part.
  int64_t seen(int part, int64_t positions) const { return proportions_.seen(part, positions); }

  const std::vector<Part>& parts() const { return parts_; }
  const Dataset& dataset(int part) const { return *parts_[size_t(part)].dataset; }
  const Proportions& proportions() const { return proportions_; }
  // of all data sets together; what an epoch of a mixture means, as published
  int64_t size() const;
  const Spec& spec() const { return parts_[0].dataset->spec(); }
  std::string name() const;     // "coco", "coco + laion"
  std::string summary() const;  // for the log

 private:
  std::vector<Part> parts_;
  Proportions proportions_;
};

// Why samples of the two specs cannot stand in one batch ("field 'labels' is i32 [12] in one, i32
// [24] in the other"), or "". How large ids may be is not compared: each data set is checked
// against the model.
std::string spec_difference(const Spec& one, const Spec& other);

}  // namespace data
