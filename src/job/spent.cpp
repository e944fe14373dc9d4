// SPDX-License-Identifier: Apache-2.0
#include "job/spent.hpp"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "base/clock.hpp"
#include "base/flight_page.hpp"

namespace job {

double Spent::total() const { return std::accumulate(by.begin(), by.begin() + kParts, 0.0); }

Spent Spent::since(const Spent& before) const {
  Spent out;
  for (size_t i = 0; i < kKinds; ++i) out.by[i] = std::max(0.0, by[i] - before.by[i]);
  return out;
}

Spent& Spent::operator+=(const Spent& more) {
  for (size_t i = 0; i < kKinds; ++i) by[i] += more.by[i];
  return *this;
}

void Spent::lose_since(const Spent& kept) {
  const double all = total();
  for (size_t i = 0; i < kKinds; ++i) by[i] = std::min(by[i], kept.by[i]);
  by[redone] = 0;
  by[redone] = std::max(0.0, all - total());
}

void keep_spent(const Spent& spent) {
  base::FlightPage::Head& head = base::flight_page().head;
  static_assert(Spent::kKinds <= std::tuple_size_v<decltype(head.spent_ns)>);
  for (size_t i = 0; i < Spent::kKinds; ++i) head.spent_ns[i] = uint64_t(1e9 * spent.by[i]);
  head.spent_until_ns = uint64_t(base::now_ns());
}

Spent::Kind kind_of_phase(const char* phase) {
  const std::string_view name = phase;
  return name == "train"      ? Spent::training
         : name == "evaluate" ? Spent::evaluation
         : name == "save"     ? Spent::checkpoint
         : name == "rewind"   ? Spent::redone
                              : Spent::setup;
}

}  // namespace job
