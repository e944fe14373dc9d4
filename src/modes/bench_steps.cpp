// SPDX-License-Identifier: Apache-2.0
#include "modes/bench_steps.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/clock.hpp"
#include "data/stream/host_batch.hpp"
#include "host/machine_limits.hpp"
#include "host/stolen_time.hpp"
#include "kernels/gemm.hpp"

namespace modes {
using namespace train;

namespace {

// A step without stolen CPU time, and the probe time of the cores around it.
struct Undisturbed {
  double ms, cores_s;
};

// Sorts the times, and selects the steps around which the cores were nearly at their fastest.
void finish(StepTimes& times, const std::vector<Undisturbed>& alone) {
  double fastest_s = 1e30;
  for (const Undisturbed& one : alone) fastest_s = std::min(fastest_s, one.cores_s);
  for (const Undisturbed& one : alone) {
    times.alone.push_back(one.ms);
    times.slowest_cores = std::min(times.slowest_cores, fastest_s / one.cores_s);
    if (one.cores_s < 1.05 * fastest_s) times.at_speed.push_back(one.ms);
  }
  for (auto* sorted : {&times.all, &times.alone, &times.at_speed})
    std::sort(sorted->begin(), sorted->end());
}

}  // namespace

double StepTimes::mean() const {
  return std::accumulate(all.begin(), all.end(), 0.0) / double(all.size());
}

double StepTimes::median() const { return host::median_of(all); }

double p99_of(const std::vector<double>& sorted) {
  return sorted[std::min(sorted.size() - 1, size_t(0.99 * double(sorted.size())))];
}

StepTimes time_steps(Job& job) {
  comm::Comm& world = job.session().world();
  step::Engine& engine = job.engine();
  const BenchOptions& options = job.recipe().bench;
  // A GPU has the next step in its queue before the host reads a report. Then a time is the span
  // from one report to the next, and the cores are not probed meanwhile. One more step than the
  // timed ones is submitted, so that all are timed alike.
  const bool ahead = engine.runs_ahead();
  const int64_t warmup = options.warmup_steps, steps = warmup + options.steps;
  data::Loader loader(job.data(), job.recipe().data.loader,
                      training_plan(engine.geometry(), job.mesh(), 0, steps + ahead));
  host::StolenTime stolen(world, job.session().local_size() == world.size());
  StepTimes times;
  const int threads = engine.queue().threads();
  auto probe = [&] { return ahead ? 1.0 : host::probe_cores(world, threads); };
  double cores_s = probe();
  std::vector<Undisturbed> alone;
  auto submit = [&](int64_t step) {
    engine.submit(step, [&](int64_t) { return data::host_batch(loader.next()); });
  };
  comm::Background before;
  base::Stopwatch timed, watch;
  for (int64_t step = 1; step <= steps; ++step) {
    if (step == warmup + 1) {
      engine.queue().reset_costs();
      kernels::reset_gemm_uses();
      before = job.session().background();
      times.spans = mark_spans();
      timed.restart();
    }
    if (!ahead) world.barrier();
    stolen.since_last();
    if (!ahead) watch.restart();
    while (times.submitted < step + ahead) submit(++times.submitted);
    const step::StepReport& report = engine.report(step);
    double s = world.max(watch.restart());
    times.loss = report.loss();
    times.transfers = report.transfers;
    times.paths = report.paths;
    if (step <= warmup) continue;
    times.data_s += report.data_s;
    times.comm_s += report.comm_s;
    times.exposed_s -= world.max(-report.comm_s);
    times.all.push_back(s * 1e3);
    const bool disturbed = host::StolenTime::is_much(stolen.since_last(), s);
    const double before_s = std::exchange(cores_s, probe());
    if (!disturbed) alone.push_back({s * 1e3, std::max(before_s, cores_s)});
    if (times.all.size() >= 2 && world.max(timed.seconds()) > options.max_s) break;
  }
  times.background = job.session().background().since(before);
  times.spans = mark_spans().since(times.spans);
  if (ahead) engine.report(times.submitted);  // the GPU is busy until this step is done
  finish(times, alone);
  return times;
}

}  // namespace modes
