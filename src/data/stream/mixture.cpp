// SPDX-License-Identifier: Apache-2.0
#include "data/stream/mixture.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/text.hpp"

namespace data {

Mixture::Mixture(const Dataset& dataset, Order order) {
  std::shared_ptr<const Dataset> borrowed(std::shared_ptr<const Dataset>(), &dataset);
  parts_.push_back({std::move(borrowed), order});
  CHECK(order.size() == dataset.size(), "an order of {} for {} samples", order.size(),
        dataset.size());
}

Mixture::Mixture(const std::map<std::string, Part>& parts,
                 const std::map<std::string, double>& weights)
    : proportions_(weights) {
  CHECK(parts.size() == weights.size(), "{} data sets, {} weights", parts.size(), weights.size());
  for (const auto& [name, weight] : weights) {
    const Part& part = parts.at(name);
    CHECK(part.order.size() == part.dataset->size(), "an order of {} for {} samples",
          part.order.size(), part.dataset->size());
    parts_.push_back(part);
    const Dataset &first = *parts_[0].dataset, &last = *part.dataset;
    if (std::string problem = spec_difference(first.spec(), last.spec()); !problem.empty())
      base::fail(base::Exit::config, "[data.{}] and [data.{}] cannot be mixed: {}", first.name(),
                 last.name(), problem);
  }
}

Mixture::Item Mixture::at(int64_t position) const {
  Proportions::Place place = proportions_.at(position);
  return {place.part, parts_[size_t(place.part)].order.index(place.position)};
}

int64_t Mixture::size() const {
  int64_t sum = 0;
  for (const Part& p : parts_) sum += p.dataset->size();
  return sum;
}

int64_t Mixture::end() const {
  int64_t first = INT64_MAX;
  for (int k = 0; k < int(parts_.size()); ++k)
    first = std::min(first, proportions_.position_of({k, parts_[size_t(k)].dataset->size()}));
  return first;
}

std::string Mixture::name() const {
  std::vector<std::string> names;
  for (const Part& p : parts_) names.push_back(p.dataset->name());
  return base::join(names, " + ");
}

std::string Mixture::summary() const {
  if (parts_.size() == 1) return parts_[0].dataset->summary();
  std::vector<std::string> texts;
  for (size_t k = 0; k < parts_.size(); ++k)
    texts.push_back(fmt::format("{} of {} from {} ({}, {})", proportions_.count(int(k)),
                                proportions_.period(), parts_[k].dataset->name(),
                                parts_[k].dataset->summary(),
                                base::with_commas(parts_[k].dataset->size())));
  return base::join(texts, "; ");
}

std::string spec_difference(const Spec& one, const Spec& other) {
  auto text = [](const Spec& spec, const std::string& field) {
    auto it = spec.find(field);
    return it == spec.end() ? std::string("missing") : text_of(it->second);
  };
  for (const Spec* spec : {&one, &other})
    for (const auto& [field, known] : *spec)
      if (std::string a = text(one, field), b = text(other, field); a != b)
        return fmt::format("field '{}' is {} in the first, {} in the second", field, a, b);
  return "";
}

}  // namespace data
