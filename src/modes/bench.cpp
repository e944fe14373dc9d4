// SPDX-License-Identifier: Apache-2.0
// --mode bench: times the deck's training step and each op. Leaves no file. The last line of output
// is one JSON object for comparison with other programs:
// {"ms_per_step": .., "workload": run.name, "dtype": "f32", "batch": .., "peak_rss_mib": ..}
#include <sys/resource.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/log.hpp"
#include "base/text.hpp"
#include "device/gpu.hpp"
#include "host/machine_limits.hpp"
#include "host/mfu.hpp"
#include "host/threads.hpp"
#include "job/failure.hpp"
#include "modes/bench_gpu_ops.hpp"
#include "modes/bench_spans.hpp"
#include "modes/bench_steps.hpp"
#include "modes/bench_tables.hpp"
#include "modes/mode.hpp"
#include "train/console.hpp"
#include "train/unused.hpp"

namespace modes {
using namespace train;
namespace log = base::log;
namespace {

void print_head(Job& job) {
  const Recipe& recipe = job.recipe();
  comm::Comm& world = job.session().world();
  const step::Geometry& g = job.engine().geometry();
  log::line("{}", version_line());
  log::line(
      "bench    {}  {} ranks x {} threads  batch {} = micro_batch {} x accumulation {} x ranks",
      recipe.run.name, world.size(), job.threads(), g.global_batch, g.micro_batch, g.accumulation);
  if (const std::string graphs = job.engine().graphs_text(); !graphs.empty())
    log::line("graphs   {}", graphs);
  log::line("compute  {}", compute_text(recipe.precision));
  host::print_binding(world, job.session().host(), job.threads());
  print_unused(recipe, job.device().kind);
}

// Figures of a step.
struct Pace {
  double examples_per_s = 0, flops = 0;  // FLOPs of a step
  double hardware = 0;                   // FLOPs of a step, including recomputed ones
  double peak = 0;                       // FLOP/s of all devices together; 0: not known
  int64_t rss_kib = 0;                   // peak resident memory of the largest rank
};

void print_step(Job& job, const StepTimes& times, const Pace& pace) {
  const double median = times.median();
  const double given = job.recipe().profile.peak_tflops;
  const char* source = given > 0                                 ? "given"
                       : job.device().kind == device::Kind::cuda ? "listed"
                                                                 : "measured";
  log::line(
      "step     median {:.1f} ms  min {:.1f}  p99 {:.1f}  max {:.1f}  {:.2f} examples/s  {:.1f} "
      "GFLOP/s = {}  loss {:.6f}",
      median, times.all.front(), p99_of(times.all), times.all.back(), pace.examples_per_s,
      pace.flops / median / 1e6,
      pace.peak > 0
          ? fmt::format("{:.1f} % of {:.1f} {}", 100 * pace.flops / median * 1e3 / pace.peak,
                        pace.peak / 1e9, source)
          : "an unknown share of the GPU's peak",
      times.loss);
  const size_t alone = times.alone.size(), at_speed = times.at_speed.size();
  auto steady = [](const std::vector<double>& ms) {
    if (ms.empty()) return std::string(": no figures");
    return fmt::format(": median {:.1f} ms, p99 {:.1f} = {:.2f} times that", host::median_of(ms),
                       p99_of(ms), p99_of(ms) / host::median_of(ms));
  };
  log::line("steady   others took CPU time from {} of {} steps; of the {} left{}",
            times.all.size() - alone, times.all.size(), alone, steady(times.alone));
  if (alone)
    log::line(
        "         beside these the cores computed at {:.0f} to 100 % of their best; of the {} "
        "steps above 95 %{}",
        100 * times.slowest_cores, at_speed, steady(times.at_speed));
}

int64_t largest_rss_kib(comm::Comm& world) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return world.max(int64_t(usage.ru_maxrss));
}

double short_of(double x) { return std::round(x * 1e3) / 1e3; }

nlohmann::ordered_json summary_of(Job& job, const StepTimes& times, const Pace& pace) {
  const double n = double(times.all.size()), median = times.median();
  const size_t alone = times.alone.size(), at_speed = times.at_speed.size();
  const double per_s = pace.peak > 0 ? 1e3 / median / pace.peak : 0;
  return {{"ms_per_step", short_of(median)},
          {"workload", job.recipe().run.name},
          {"dtype", name_of(job.recipe().precision.compute)},
          {"batch", job.engine().geometry().global_batch},
          {"ranks", job.session().world().size()},
          {"threads", job.threads()},
          {"ms_min", short_of(times.all.front())},
          {"ms_p99", short_of(p99_of(times.all))},
          {"ms_max", short_of(times.all.back())},
          {"steps", times.all.size()},
          {"steps_alone", alone},
          {"ms_alone", alone ? short_of(host::median_of(times.alone)) : 0.0},
          {"ms_p99_alone", alone ? short_of(p99_of(times.alone)) : 0.0},
          {"steps_at_speed", at_speed},
          {"ms_at_speed", at_speed ? short_of(host::median_of(times.at_speed)) : 0.0},
          {"ms_p99_at_speed", at_speed ? short_of(p99_of(times.at_speed)) : 0.0},
          {"examples_per_s", short_of(pace.examples_per_s)},
          {"gflops", short_of(pace.flops / median / 1e6)},
          {"peak_gflops", short_of(pace.peak / 1e9)},
          {"mfu", short_of(pace.flops * per_s)},
          {"hfu", short_of(pace.hardware * per_s)},
          {"comm_ms", short_of(times.comm_s / n * 1e3)},
          {"data_ms", short_of(times.data_s / n * 1e3)},
          {"planned_mib", double(job.engine().ledger().total_peak()) / 1048576},
          {"peak_rss_mib", pace.rss_kib / 1024}};
}

void add_ops(nlohmann::ordered_json& summary, const OpTimes& ops, const StepTimes& times) {
  const double n = double(times.all.size());
  auto ms = [&](double seconds) { return short_of(seconds / n * 1e3); };
  summary.update({{"of_limits", short_of(ops.limit / n / times.median() * 1e3)},
                  {"products_ms", ms(ops.products)},
                  {"products_alone_ms", ms(ops.products_alone)},
                  {"other_ops_ms", ms(ops.all - ops.products)},
                  {"optimizer_ms", ms(ops.optimizer)},
                  {"exposed_ms", ms(times.exposed_s)},
                  {"exchange_alone_ms", short_of(ops.exchange_alone * 1e3)},
                  {"exchange_beside_ms", ms(times.background.seconds)}});
}

void add_transfers(nlohmann::ordered_json& summary, const device::Transfers& t) {
  log::line(
      "transfers per step: {} to the GPU ({} bytes), {} to the host ({} bytes); the host waited {} "
      "times",
      t.uploads, base::with_commas(t.uploaded_bytes), t.downloads,
      base::with_commas(t.downloaded_bytes), t.waits);
  summary["uploads"] = t.uploads;
  summary["downloads"] = t.downloads;
  summary["waits"] = t.waits;
  // Memory is never freed before the end, so the use at the end is the peak.
  summary["peak_memory_gib"] = short_of(double(device::gpu_memory_used_bytes()) / 0x1p30);
}

void add_paths(nlohmann::ordered_json& summary, const kernels::PathCounts& paths) {
  std::string text;
  for (size_t i = 0; i < paths.size(); ++i) {
    const char* name = kernels::name_of(kernels::Path(i));
    text += fmt::format("{}{} {}", i ? ", " : "", name, paths[i]);
    summary[name] = paths[i];
  }
  log::line("paths    per step: {}", text);
}

void bench(Job& job) {
  job.connect();
  job.stage_data();
  job.open_data();
  job.build_engine();
  step::Engine& engine = job.engine();
  engine.initialise();
  engine.publish();
  print_head(job);
  const Recipe& recipe = job.recipe();
  comm::Comm& world = job.session().world();
  const bool on_gpu = job.device().kind == device::Kind::cuda;
  Pace pace;
  pace.peak = host::find_peak(world, job.device().kind, job.threads(), recipe.precision.compute,
                              recipe.profile, 0.5)
                  .flops;

  const StepTimes times = time_steps(job);
  const double n = double(times.all.size()), batch = double(engine.geometry().global_batch);
  pace.rss_kib = largest_rss_kib(world);  // before the tables measure anything
  OpTimes ops;
  if (on_gpu)
    print_launches(engine, times);
  else
    ops = print_ops(job, times, pace.peak);
  pace.examples_per_s = batch / times.median() * 1e3;
  pace.flops = double(engine.model().train_flops()) * batch;
  pace.hardware = double(world.sum(host::hardware_flops(engine.queue()))) / n;
  print_step(job, times, pace);
  print_memory(engine);
  if (engine.graphs()) print_graphs(engine.queue(), n);
  const SpanCost spans = measure_spans(times.spans);
  log::line("spans    {}", spans.text(times.median(), int64_t(times.all.size())));
  nlohmann::ordered_json summary = summary_of(job, times, pace);
  const auto steps = int64_t(times.all.size());
  summary["spans_share"] = spans.share(times.median(), steps);
  summary["traced_spans_share"] = spans.traced_share(times.median(), steps);
  if (on_gpu) {
    add_transfers(summary, times.transfers);
    add_paths(summary, times.paths);
    if (recipe.bench.op_steps > 0 && !engine.graphs()) add_gpu_ops(summary, job, times.submitted);
  } else {
    add_ops(summary, ops, times);
  }
  log::line("{}", summary.dump());
}

int run_bench(Call& call) {
  return job::end_all_on_error(*call.session, [&] {
    Job job(call.recipe, call.deck, call.session, call.start.mesh_selector,
            {.writes_indexes = false});
    bench(job);
    return 0;
  });
}

}  // namespace

Mode bench_row() {
  return {.name = "bench", .doc = "time per op", .on_ranks = true, .run = run_bench};
}

}  // namespace modes
