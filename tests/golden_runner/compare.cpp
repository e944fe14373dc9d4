// SPDX-License-Identifier: Apache-2.0
#include "compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace golden {
namespace {
constexpr double kInfinity = std::numeric_limits<double>::infinity();
// represents infinity in text between ranks
constexpr double kLargest = std::numeric_limits<double>::max();
}  // namespace

double Report::deviation(double got, double want) {
  double d = std::abs(got - want);
  return std::isnan(d) ? kInfinity : d;
}

Report::Row& Report::row(const std::string& quantity) {
  for (auto& [name, row] : rows_)
    if (name == quantity) return row;
  return rows_.emplace_back(quantity, Row{}).second;
}

bool Report::Row::within() const { return beyond == 0 || (!far && beyond <= rare_limit(values)); }

void Report::note(const std::string& quantity, const std::string& tensor, double deviation,
                  double tolerance, int64_t values, int64_t beyond, bool far) {
  Row& r = row(quantity);
  r.values += values;
  r.beyond += beyond;
  r.far |= beyond > 0 && far;
  double ratio = deviation == 0 ? 0 : tolerance > 0 ? deviation / tolerance : kInfinity;
  // Among equally bad tensors the first name wins, so the report does not depend on the rank count.
  if (ratio < r.ratio || (ratio == r.ratio && tensor >= r.tensor)) return;
  r.deviation = deviation;
  r.tolerance = tolerance;
  r.ratio = ratio;
  r.tensor = tensor;
}

void Report::require(const std::string& quantity, const std::string& what, bool holds,
                     const std::string& problem) {
  note(quantity, holds || problem.empty() ? what : what + ": " + problem, holds ? 0 : kInfinity, 0,
       1, !holds, true);
}

void Report::merge(comm::Comm& world) {
  nlohmann::json mine = nlohmann::json::array();
  for (const auto& [name, r] : rows_)
    mine.push_back(
        {name, std::min(r.deviation, kLargest), r.tolerance, r.tensor, r.values, r.beyond, r.far});
  std::vector<std::string> all = world.gather_text(mine.dump());
  rows_.clear();
  for (const std::string& text : all)
    for (const nlohmann::json& r : nlohmann::json::parse(text)) {
      auto deviation = r[1].get<double>();
      note(r[0], r[3], deviation == kLargest ? kInfinity : deviation, r[2], r[4], r[5], r[6]);
    }
}

bool Report::within() const {
  return std::all_of(rows_.begin(), rows_.end(), [](const auto& r) { return r.second.within(); });
}

std::string Report::table() const {
  std::string out = fmt::format("  {:<28} {:>10} {:>10} {:>8}  {}\n", "quantity", "deviation",
                                "tolerance", "ratio", "worst in");
  for (const auto& [name, r] : rows_) {
    out += fmt::format("  {:<28} {:>10.3g} {:>10.3g} {:>8.3f}  {}{}\n", name, r.deviation,
                       r.tolerance, r.ratio, r.tensor, r.within() ? "" : "  BEYOND");
    if (r.beyond > 0 && !r.far)
      out += fmt::format(
          "    {} of {} values beyond the tolerance of their set, by no more than other sets "
          "allow; {} may, next to bfloat16 state\n",
          r.beyond, r.values, rare_limit(r.values));
  }
  if (!skipped_.empty())
    out += fmt::format("  left out: {} sets that hold rounding noise only\n", skipped_.size());
  return out;
}

}  // namespace golden
