// SPDX-License-Identifier: Apache-2.0
#include "data/stream/proportions.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.hpp"
#include "base/text.hpp"

namespace data {
namespace {

constexpr int64_t kLongest = 10'000;
constexpr double kRounding = 1e-9;  // error of sums of decimal weights such as 0.1 + 0.2

bool is_whole(double x) {
  return std::abs(x - std::nearbyint(x)) <= kRounding * std::max(1.0, std::abs(x));
}

std::vector<int64_t> counts_of(const std::vector<double>& shares) {
  auto all_whole = [&](int64_t period) {
    return std::all_of(shares.begin(), shares.end(),
                       [&](double s) { return is_whole(s * double(period)); });
  };
  int64_t period = 1;
  while (period < kLongest && !all_whole(period)) ++period;

  std::vector<int64_t> counts;
  std::vector<double> rest;
  for (double s : shares) {
    double quota = s * double(period);
    if (is_whole(quota)) quota = std::nearbyint(quota);
    counts.push_back(int64_t(quota));
    rest.push_back(quota - std::floor(quota));
  }
  std::vector<size_t> order(shares.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return rest[a] > rest[b]; });
  int64_t missing = period - std::accumulate(counts.begin(), counts.end(), int64_t{0});
  for (int64_t i = 0; i < missing; ++i) ++counts[order[size_t(i)]];
  return counts;
}

}  // namespace

Proportions::Proportions(const std::map<std::string, double>& weights) {
  CHECK(!weights.empty(), "a mixture of nothing");
  double sum = 0;
  for (const auto& [name, weight] : weights) {
    CHECK(weight > 0 && std::isfinite(weight), "weight {} of '{}'", weight, name);
    sum += weight;
  }
  std::vector<double> shares;
  for (const auto& [name, weight] : weights) {
    shares.push_back(weight / sum);
    if (shares.back() * double(kLongest) < 1 - kRounding)
      base::fail(base::Exit::config,
                 "\"{}\" has {:.3g} of all weights; at least 1 in {} is needed: raise its weight "
                 "or leave it out",
                 name, shares.back(), base::with_commas(kLongest));
  }
  std::vector<int64_t> counts = counts_of(shares);

  struct Due {
    double when;
    Place place;
  };
  std::vector<Due> due;
  for (size_t k = 0; k < counts.size(); ++k)
    for (int64_t j = 0; j < counts[k]; ++j)
      due.push_back({(double(j) + 0.5) / double(counts[k]), {int(k), j}});
  // The stable sort keeps the order of the names for equal times.
  std::stable_sort(due.begin(), due.end(),
                   [](const Due& a, const Due& b) { return a.when < b.when; });
  places_.resize(counts.size());
  for (const Due& d : due) {
    places_[size_t(d.place.part)].push_back(int64_t(at_.size()));
    at_.push_back(d.place);
  }
}

Proportions::Place Proportions::at(int64_t position) const {
  CHECK(position >= 0, "position {}", position);
  Place place = at_[size_t(position % period())];
  place.position += position / period() * count(place.part);
  return place;
}

int64_t Proportions::position_of(Place place) const {
  const std::vector<int64_t>& places = places_[size_t(place.part)];
  return place.position / count(place.part) * period() +
         places[size_t(place.position % count(place.part))];
}

int64_t Proportions::seen(int part, int64_t positions) const {
  const std::vector<int64_t>& places = places_[size_t(part)];
  auto end = std::lower_bound(places.begin(), places.end(), positions % period());
  return positions / period() * count(part) + int64_t(end - places.begin());
}

}  // namespace data
