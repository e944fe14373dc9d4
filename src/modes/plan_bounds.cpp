// SPDX-License-Identifier: Apache-2.0
#include "modes/plan_bounds.hpp"

#include <algorithm>

#include "base/log.hpp"
#include "kernels/dispatch.hpp"

namespace modes {
namespace log = base::log;
namespace {

constexpr double kBytesPerS = 4.8e12;  // data sheet of the H200
constexpr double kShownPart = 0.005;   // kinds with less of the sum share a line

struct Bound {
  std::string name;
  device::OpCost cost;
  double ms = 0;

  void add(const Bound& other) {
    cost.calls += other.cost.calls;
    cost.flops += other.cost.flops;
    cost.bytes += other.cost.bytes;
    ms += other.ms;
  }
  void print() const {
    log::line("           {:<24}{:>8} calls {:>12.2f} GFLOP {:>10.3f} GB {:>9.3f} ms", name,
              cost.calls, double(cost.flops) / 1e9, double(cost.bytes) / 1e9, ms);
  }
};

}  // namespace

void print_bounds(const train::Recipe& recipe, const Plan& plan) {
  const host::Compute compute = recipe.precision.compute;
  const double given = recipe.profile.peak_tflops,
               peak = given > 0 ? given : host::listed_peak_tflops("NVIDIA H200", compute);
  std::vector<Bound> bounds;
  Bound sum{.name = "sum", .cost = {}}, others{.name = "", .cost = {}};
  for (size_t i = 0; i < plan.ops.size(); ++i) {
    const device::OpCost& c = plan.ops[i];
    if (!c.calls) continue;
    const double s = std::max(double(c.flops) / (peak * 1e12), double(c.bytes) / kBytesPerS);
    bounds.push_back({kernels::name_of(kernels::Op(i)), c, s * 1e3});
    sum.add(bounds.back());
  }
  std::sort(bounds.begin(), bounds.end(),
            [](const Bound& a, const Bound& b) { return a.ms > b.ms; });
  log::line(
      "bounds   per rank and step, each kind of op at {:.1f} TFLOP/s ({}{}) or {:.1f} TB/s of an "
      "H200, whichever takes longer; all rows of text",
      peak, name_of(compute), given > 0 ? ", profile.peak_tflops" : "", kBytesPerS / 1e12);
  int small = 0;
  for (const Bound& b : bounds) {
    if (b.ms >= kShownPart * sum.ms) {
      b.print();
      continue;
    }
    others.add(b);
    ++small;
  }
  if (small) {
    others.name = fmt::format("{} other kinds", small);
    others.print();
  }
  sum.print();
}

}  // namespace modes
