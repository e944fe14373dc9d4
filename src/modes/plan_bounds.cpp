// SPDX-License-Identifier: Apache-2.0
#include "modes/plan_bounds.hpp"

#include <algorithm>
#include <array>

#include "base/log.hpp"
#include "kernels/dispatch.hpp"

namespace modes {
namespace log = base::log;
namespace {

// Speeds of an H200. The data sheet promises 989.4 TFLOP/s in 16 bits and 4.8 TB/s; large products
// reach 790 TFLOP/s, and copies 4.3 TB/s.
constexpr double kBytesPerS = 4.8e12, kProductsReach = 790 / 989.4, kCopiesReach = 4.3 / 4.8;
constexpr double kShownPart = 0.005;  // kinds with less of the sum share a line

struct Speeds {
  double flops_per_s, bytes_per_s;
  double ms(const device::PlannedCall& call) const {
    return 1e3 * std::max(double(call.flops) / flops_per_s, double(call.bytes) / bytes_per_s);
  }
  std::string text() const {
    return fmt::format("{:.1f} TFLOP/s or {:.1f} TB/s", flops_per_s / 1e12, bytes_per_s / 1e12);
  }
};

struct Bound {
  std::string name;
  device::OpCost cost;
  double listed_ms = 0, reached_ms = 0;

  void add(const Bound& other) {
    cost.calls += other.cost.calls;
    cost.flops += other.cost.flops;
    cost.bytes += other.cost.bytes;
    listed_ms += other.listed_ms;
    reached_ms += other.reached_ms;
  }
  void print() const {
    log::line("           {:<24}{:>8} calls {:>12.2f} GFLOP {:>10.3f} GB {:>9.3f} ms {:>9.3f} ms",
              name, cost.calls, double(cost.flops) / 1e9, double(cost.bytes) / 1e9, listed_ms,
              reached_ms);
  }
};

}  // namespace

void print_bounds(const train::Recipe& recipe, const Plan& plan) {
  const host::Compute compute = recipe.precision.compute;
  const double given = recipe.profile.peak_tflops,
               peak = given > 0 ? given : host::listed_peak_tflops("NVIDIA H200", compute);
  const Speeds listed{peak * 1e12, kBytesPerS},
      reached{kProductsReach * peak * 1e12, kCopiesReach * kBytesPerS};
  std::array<Bound, size_t(kernels::Op::count)> kinds;
  Bound sum{.name = "sum", .cost = {}}, others{.name = "", .cost = {}};
  for (const auto& [call, count] : plan.calls) {
    const Bound one{
        .name = kernels::name_of(kernels::Op(call.op)),
        .cost = {.calls = count, .flops = count * call.flops, .bytes = count * call.bytes},
        .listed_ms = double(count) * listed.ms(call),
        .reached_ms = double(count) * reached.ms(call)};
    Bound& kind = kinds[size_t(call.op)];
    kind.name = one.name;
    kind.add(one);
    sum.add(one);
  }
  std::sort(kinds.begin(), kinds.end(),
            [](const Bound& a, const Bound& b) { return a.reached_ms > b.reached_ms; });
  log::line(
      "bounds   per rank and step, the least time on an H200 with each call limited by compute or "
      "memory: at the speed of its data sheet ({}{}: {}), then at the speed of large products and "
      "copies ({}); all rows of text",
      name_of(compute), given > 0 ? ", profile.peak_tflops" : "", listed.text(), reached.text());
  int small = 0;
  for (const Bound& b : kinds) {
    if (b.cost.calls == 0) continue;
    if (b.reached_ms >= kShownPart * sum.reached_ms) {
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
