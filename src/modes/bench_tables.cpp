// SPDX-License-Identifier: Apache-2.0
#include "modes/bench_tables.hpp"

#include <algorithm>

#include "base/log.hpp"
#include "host/machine_limits.hpp"
#include "kernels/gemm.hpp"

namespace modes {
using namespace train;
namespace log = base::log;
namespace {

// Prints the products of `steps` timed steps by shape, each beside the time of the same call
// running alone. Returns the seconds that all products would take alone. Shapes with little time
// are added up, at the relative speed of the others.
double print_products(comm::Comm& world, int threads, double steps) {
  std::vector<kernels::GemmUse> products = kernels::gemm_uses();
  std::sort(products.begin(), products.end(),
            [](const auto& one, const auto& other) { return one.seconds > other.seconds; });
  double all = 0;
  for (const kernels::GemmUse& p : products) all += p.seconds;
  // Ranks may have seen different examples, but all must make the same number of measurements.
  auto large = [&](const kernels::GemmUse& p) { return p.seconds > 0.005 * all; };
  size_t shown = size_t(world.min(int64_t(std::count_if(products.begin(), products.end(), large))));
  const std::vector<double> alone = host::measure_gemms(
      world, threads, {products.begin(), products.begin() + int64_t(shown)}, 0.1);
  log::line("{:<44}{:>8}{:>12}{:>10}{:>10}{:>9}", "product m x n x k (per step)", "calls", "ms",
            "GFLOP/s", "alone", "of alone");
  double seconds = 0, ideal_s = 0;
  for (size_t i = 0; i < shown; ++i) {
    const kernels::GemmUse& p = products[i];
    double flops = 2.0 * double(p.m) * double(p.n) * double(p.k), calls = double(p.calls);
    seconds += p.seconds;
    ideal_s += calls * alone[i];
    log::line(
        "{:<44}{:>8.0f}{:>12.2f}{:>10.1f}{:>10.1f}{:>8.1f}%",
        fmt::format("{} x {} x {} {}{}{}{}{}", p.m, p.n, p.k, p.trans_a ? "t" : "n",
                    p.trans_b ? "t" : "n", p.bias ? " +bias" : "", p.residual ? " +residual" : "",
                    p.accumulate ? " +="
                    : p.gelu     ? " gelu"
                    : p.gelu_of  ? " gelu'"
                                 : "") +
            (p.type == device::DType::bf16 ? " bf16" : ""),
        calls / steps, p.seconds / steps * 1e3, flops * calls / p.seconds / 1e9,
        flops / alone[i] / 1e9, 100 * calls * alone[i] / p.seconds);
  }
  if (shown < products.size())
    log::line("{:<44}{:>8}{:>12.2f}", fmt::format("{} other shapes", products.size() - shown), "",
              (all - seconds) / steps * 1e3);
  return seconds > 0 ? ideal_s * all / seconds : 0;
}

}  // namespace

OpTimes print_ops(Job& job, const StepTimes& times, double peak) {
  comm::Comm& world = job.session().world();
  step::Engine& engine = job.engine();
  const int threads = job.threads();
  const double n = double(times.all.size()), median = times.median();
  OpTimes sums;
  sums.products_alone = print_products(world, threads, n);
  const double copy = host::measure_copy(world, threads, 0.3);
  // The limit of products is their speed alone. Any other op is limited by copying the bytes that
  // it cannot avoid, or by the speed of the fastest product.
  log::line("{:<22}{:>8}{:>12}{:>10}{:>10}{:>10}{:>9}", "op (per step)", "calls", "ms", "GFLOP/s",
            "GB/s", "of limit", "share");
  for (int i = 0; i < int(kernels::Op::count); ++i) {
    const kernels::Op op = kernels::Op(i);
    const device::OpCost& c = engine.queue().costs()[size_t(i)];
    if (!c.calls) continue;
    double limit = op == kernels::Op::gemm
                       ? sums.products_alone
                       : std::max(double(c.bytes) / copy, double(c.flops) * world.size() / peak);
    sums.all += c.seconds;
    sums.limit += limit;
    if (op == kernels::Op::gemm) sums.products += c.seconds;
    if (kernels::group_of(op) == kernels::OpGroup::optimizer) sums.optimizer += c.seconds;
    log::line("{:<22}{:>8.0f}{:>12.2f}{:>10.1f}{:>10.2f}{:>9.1f}%{:>8.1f}%", kernels::name_of(op),
              double(c.calls) / n, c.seconds / n * 1e3, double(c.flops) / c.seconds / 1e9,
              double(c.bytes) / c.seconds / 1e9, 100 * limit / c.seconds,
              c.seconds / n / median * 1e5);
  }
  std::string plain;
  if (world.size() > 1) {
    // Time of one exchange alone, of as many bytes as the gradients have.
    sums.exchange_alone = host::measure_all_reduce(world, 4 * engine.layout().total_elements());
    plain = fmt::format("{:.0f}% of plain", 100 * times.comm_s / n / sums.exchange_alone);
  }
  auto other_line = [&](const char* name, double seconds, const std::string& note) {
    log::line("{:<22}{:>8}{:>12.2f}{:>38}{:>8.1f}%", name, "", seconds / n * 1e3, note,
              seconds / n / median * 1e5);
  };
  other_line("communication", times.comm_s, plain);
  other_line("data", times.data_s, "");
  other_line("other", n * times.mean() / 1e3 - (sums.all + times.comm_s + times.data_s), "");
  log::line(
      "limits   products alone {:.1f} ms, other ops {:.1f} ms (copying at {:.1f} GB/s): together "
      "{:.1f} % of the step",
      sums.products_alone / n * 1e3, (sums.limit - sums.products_alone) / n * 1e3, copy / 1e9,
      sums.limit / n / median * 1e5);
  if (world.size() > 1)
    log::line(
        "exchange exposed {:.2f} ms (the rank that waits least) = {:.0f} % of {:.1f} alone; beside "
        "computing {:.1f} exchanges ended and took {:.1f} ms of CPU time; {}",
        times.exposed_s / n * 1e3, 100 * times.exposed_s / n / sums.exchange_alone,
        sums.exchange_alone * 1e3, double(times.background.finished) / n,
        times.background.seconds / n * 1e3, job.device().exchange);
  return sums;
}

void print_graphs(device::Queue& queue, double steps) {
  const device::Queue::GraphCost& c = queue.graph_cost();
  log::line(
      "graphs   {:.1f} launches per step; these, and recording {} while timed, took the host "
      "{:.3f} ms per step",
      double(c.launches) / steps, c.recorded, c.seconds / steps * 1e3);
}

// On a GPU the queue knows only what ops cost the host, which runs ahead. bench.op_steps measures
// their time on the GPU.
void print_launches(step::Engine& engine, const StepTimes& times) {
  const double n = double(times.all.size());
  log::line("{:<22}{:>8}{:>12}{:>12}{:>12}", "op (per step)", "calls", "host ms", "GFLOP", "GB");
  auto line = [](const std::string& name, const std::string& calls, double seconds, double flops,
                 double bytes) {
    log::line("{:<22}{:>8}{:>12.3f}{:>12.2f}{:>12.3f}", name, calls, seconds * 1e3, flops / 1e9,
              bytes / 1e9);
  };
  device::OpCost all;
  for (int i = 0; i < int(kernels::Op::count); ++i) {
    const device::OpCost& c = engine.queue().costs()[size_t(i)];
    if (!c.calls) continue;
    all.calls += c.calls;
    all.seconds += c.seconds;
    all.flops += c.flops;
    all.bytes += c.bytes;
    line(kernels::name_of(kernels::Op(i)), fmt::format("{:.0f}", double(c.calls) / n),
         c.seconds / n, double(c.flops) / n, double(c.bytes) / n);
  }
  line("all ops", fmt::format("{:.0f}", double(all.calls) / n), all.seconds / n,
       double(all.flops) / n, double(all.bytes) / n);
  log::line(
      "host     of a step it took {:.2f} ms to put ops into the GPU's queue, {:.2f} ms to "
      "exchange, {:.2f} ms to wait for data",
      all.seconds / n * 1e3, times.comm_s / n * 1e3, times.data_s / n * 1e3);
}

}  // namespace modes
