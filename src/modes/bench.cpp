#include "modes/bench.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "data/host_batch.hpp"
#include "device/gpu.hpp"
#include "train/console.hpp"
#include "train/device_choice.hpp"
#include "train/gemm_choice.hpp"
#include "train/input.hpp"
#include "train/limits.hpp"
#include "train/mfu.hpp"
#include "train/stolen_time.hpp"
#include "train/threads.hpp"
#include "train/unused.hpp"

namespace modes {
using namespace train;
namespace log = base::log;

namespace {

// The products of `steps` timed steps, by shape, each beside the same call alone: seconds that all would take alone.
// Shapes that make little of the time are counted together, at the pace of the others.
double print_products(comm::Comm& world, int threads, double steps) {
  std::vector<kernels::GemmUse> products = kernels::gemm_uses();
  std::sort(products.begin(), products.end(),
            [](const auto& one, const auto& other) { return one.seconds > other.seconds; });
  double all = 0;
  for (const kernels::GemmUse& p : products) all += p.seconds;
  // Ranks may have seen other captions, and must measure as often as each other.
  auto large = [&](const kernels::GemmUse& p) { return p.seconds > 0.005 * all; };
  size_t shown = size_t(world.min(int64_t(std::count_if(products.begin(), products.end(), large))));
  const std::vector<double> alone =
      measure_gemms(world, threads, {products.begin(), products.begin() + int64_t(shown)}, 0.1);
  log::line("{:<44}{:>8}{:>12}{:>10}{:>10}{:>9}", "product m x n x k (per step)", "calls", "ms", "GFLOP/s", "alone",
            "of alone");
  double seconds = 0, ideal_s = 0;
  for (size_t i = 0; i < shown; ++i) {
    const kernels::GemmUse& p = products[i];
    double flops = 2.0 * double(p.m) * double(p.n) * double(p.k), calls = double(p.calls);
    seconds += p.seconds, ideal_s += calls * alone[i];
    log::line("{:<44}{:>8.0f}{:>12.2f}{:>10.1f}{:>10.1f}{:>8.1f}%",
              fmt::format("{} x {} x {} {}{}{}{}{}", p.m, p.n, p.k, p.trans_a ? "t" : "n", p.trans_b ? "t" : "n",
                          p.bias ? " +bias" : "", p.residual ? " +residual" : "",
                          p.accumulate ? " +="
                          : p.gelu     ? " gelu"
                          : p.gelu_of  ? " gelu'"
                                       : "") +
                  (p.type == device::DType::bf16 ? " bf16" : ""),
              calls / steps, p.seconds / steps * 1e3, flops * calls / p.seconds / 1e9, flops / alone[i] / 1e9,
              100 * calls * alone[i] / p.seconds);
  }
  if (shown < products.size())
    log::line("{:<44}{:>8}{:>12.2f}", fmt::format("{} other shapes", products.size() - shown), "",
              (all - seconds) / steps * 1e3);
  return seconds > 0 ? ideal_s * all / seconds : 0;
}

double p99_of(const std::vector<double>& sorted) {
  return sorted[std::min(sorted.size() - 1, size_t(0.99 * double(sorted.size())))];
}

// Timed steps. Those that others took CPU time from, and those that had slower cores, say nothing about how steady a
// step is.
struct Times {
  std::vector<double> all, alone;  // ms, sorted
  std::vector<double> at_speed;    // of those alone: the cores were about as fast as ever, before and after
  double slowest_cores = 1;        // of the fastest
  double data_s = 0, comm_s = 0;   // of all steps
  double loss = 0;
  device::Transfers transfers;     // of a step
  double mean() const {
    double sum = 0;
    for (double x : all) sum += x;
    return sum / double(all.size());
  }
};

Times time_steps(comm::Session& session, const Recipe& recipe, data::Mixture& input, comm::Mesh& mesh, Engine& engine) {
  comm::Comm& world = session.world();
  // A GPU has the next step before the host takes in one: what is timed is the time from one report to the next, and nobody
  // looks at the cores meanwhile. One step more than the timed ones is submitted, so that all are timed alike.
  const bool ahead = engine.runs_ahead();
  const int64_t warmup = recipe.bench.warmup_steps, steps = warmup + recipe.bench.steps;
  int64_t submitted = 0;
  data::Loader loader(input, recipe.data.loader, training_plan(engine.geometry(), mesh, 0, steps + ahead));
  StolenTime stolen(world, session.local_size() == world.size());
  Times times;
  const int threads = engine.queue().threads();
  auto probe = [&] { return ahead ? 1.0 : probe_cores(world, threads); };
  double cores_s = probe();
  struct Alone {
    double ms, cores_s;
  };
  std::vector<Alone> alone;
  auto submit = [&](int64_t step) {
    engine.submit(step, [&](int64_t, const models::Inputs& into) {
      data::BatchPtr batch = loader.next();
      engine.train_pass().prepare(data::host_batch(*batch, batch->positions[0]), engine.draws(step), into);
    });
  };
  base::Stopwatch timed, watch;
  for (int64_t step = 1; step <= steps; ++step) {
    if (step == warmup + 1) engine.queue().reset_costs(), kernels::reset_gemm_uses(), timed.restart();
    if (!ahead) world.barrier();
    stolen.since_last();
    if (!ahead) watch.restart();
    while (submitted < step + ahead) submit(++submitted);
    const StepReport& report = engine.report(step);
    double s = world.max(watch.restart());
    times.loss = report.loss(), times.transfers = report.transfers;
    if (step <= warmup) continue;
    times.data_s += report.data_s, times.comm_s += report.comm_s;
    times.all.push_back(s * 1e3);
    const bool disturbed = StolenTime::is_much(stolen.since_last(), s);
    const double before_s = std::exchange(cores_s, probe());
    if (!disturbed) alone.push_back({s * 1e3, std::max(before_s, cores_s)});
    if (times.all.size() >= 2 && world.max(timed.seconds()) > recipe.bench.max_s) break;
  }
  if (ahead) engine.report(submitted);  // until it is done, the GPU is busy
  double fastest_s = 1e30;
  for (const Alone& one : alone) fastest_s = std::min(fastest_s, one.cores_s);
  for (const Alone& one : alone) {
    times.alone.push_back(one.ms);
    times.slowest_cores = std::min(times.slowest_cores, fastest_s / one.cores_s);
    if (one.cores_s < 1.05 * fastest_s) times.at_speed.push_back(one.ms);
  }
  for (auto* sorted : {&times.all, &times.alone, &times.at_speed}) std::sort(sorted->begin(), sorted->end());
  return times;
}

// Seconds of all timed steps: what ops took, and what they would take at the machine's limits.
struct OpTimes {
  double all = 0, products = 0, optimizer = 0;
  double products_alone = 0, limit = 0;
};

OpTimes print_ops(comm::Comm& world, Engine& engine, const Times& times, int threads, double peak) {
  const double n = double(times.all.size()), median = median_of(times.all);
  OpTimes sums;
  sums.products_alone = print_products(world, threads, n);
  const double copy = measure_copy(world, threads, 0.3);
  // Limits: products as fast as alone; everything else as fast as copying the bytes that it cannot avoid, or as fast as
  // its FLOPs in the fastest product.
  log::line("{:<22}{:>8}{:>12}{:>10}{:>10}{:>10}{:>9}", "op (per step)", "calls", "ms", "GFLOP/s", "GB/s", "of limit",
            "share");
  for (int i = 0; i < int(kernels::Op::count); ++i) {
    const kernels::Op op = kernels::Op(i);
    const device::OpCost& c = engine.queue().costs()[size_t(i)];
    if (!c.calls) continue;
    double limit = op == kernels::Op::gemm ? sums.products_alone
                                           : std::max(double(c.bytes) / copy, double(c.flops) * world.size() / peak);
    sums.all += c.seconds, sums.limit += limit;
    if (op == kernels::Op::gemm) sums.products += c.seconds;
    if (kernels::group_of(op) == kernels::OpGroup::optimizer) sums.optimizer += c.seconds;
    log::line("{:<22}{:>8.0f}{:>12.2f}{:>10.1f}{:>10.2f}{:>9.1f}%{:>8.1f}%", kernels::name_of(op), double(c.calls) / n,
              c.seconds / n * 1e3, double(c.flops) / c.seconds / 1e9, double(c.bytes) / c.seconds / 1e9,
              100 * limit / c.seconds, c.seconds / n / median * 1e5);
  }
  std::string plain;
  if (world.size() > 1) {  // what MPI takes for as many bytes as the gradients have, nothing else under way
    double s = measure_all_reduce(world, 4 * engine.layout().total_elements());
    plain = fmt::format("{:.0f}% of plain", 100 * times.comm_s / n / s);
  }
  auto other_line = [&](const char* name, double seconds, const std::string& note) {
    log::line("{:<22}{:>8}{:>12.2f}{:>38}{:>8.1f}%", name, "", seconds / n * 1e3, note, seconds / n / median * 1e5);
  };
  other_line("communication", times.comm_s, plain);
  other_line("data", times.data_s, "");
  other_line("other", n * times.mean() / 1e3 - (sums.all + times.comm_s + times.data_s), "");
  log::line(
      "limits   products alone {:.1f} ms, other ops {:.1f} ms (copying at {:.1f} GB/s): together {:.1f} % of the step",
      sums.products_alone / n * 1e3, (sums.limit - sums.products_alone) / n * 1e3, copy / 1e9,
      sums.limit / n / median * 1e5);
  return sums;
}

// What graphs took the host; the ops in them are counted above, and took it nothing by themselves.
void print_graphs(device::Queue& queue, double steps) {
  const device::Queue::GraphCost& c = queue.graph_cost();
  log::line("graphs   {:.1f} launches per step; these, and recording {} while timed, took the host {:.3f} ms per step",
            double(c.launches) / steps, c.recorded, c.seconds / steps * 1e3);
}

// A queue of a GPU knows what ops cost the host, which runs ahead; what they cost the GPU, a profiler and tools/gpu_check know.
void print_launches(Engine& engine, const Times& times) {
  const double n = double(times.all.size());
  log::line("{:<22}{:>8}{:>12}{:>12}{:>12}", "op (per step)", "calls", "host ms", "GFLOP", "GB");
  auto line = [](const std::string& name, const std::string& calls, double seconds, double flops, double bytes) {
    log::line("{:<22}{:>8}{:>12.3f}{:>12.2f}{:>12.3f}", name, calls, seconds * 1e3, flops / 1e9, bytes / 1e9);
  };
  device::OpCost all;
  for (int i = 0; i < int(kernels::Op::count); ++i) {
    const device::OpCost& c = engine.queue().costs()[size_t(i)];
    if (!c.calls) continue;
    all.calls += c.calls, all.seconds += c.seconds, all.flops += c.flops, all.bytes += c.bytes;
    line(kernels::name_of(kernels::Op(i)), fmt::format("{:.0f}", double(c.calls) / n), c.seconds / n, double(c.flops) / n,
         double(c.bytes) / n);
  }
  line("all ops", fmt::format("{:.0f}", double(all.calls) / n), all.seconds / n, double(all.flops) / n, double(all.bytes) / n);
  log::line("host     of a step it took {:.2f} ms to put ops into the GPU's queue, {:.2f} ms to exchange, {:.2f} ms to wait for data",
            all.seconds / n * 1e3, times.comm_s / n * 1e3, times.data_s / n * 1e3);
}

}  // namespace

void run_bench(comm::Session& session, const Recipe& recipe, config::Deck& deck, const std::string& mesh_selector) {
  DeviceChoice device = choose_device(session, recipe.run.device, recipe.precision.compute);
  comm::Comm& world = session.world();
  comm::MeshShape shape = comm::resolve_mesh(recipe.mesh, world.size(), mesh_selector);
  derive_geometry(recipe.train.global_batch,
                  recipe.train.micro_batch ? recipe.train.micro_batch : recipe.train.global_batch, shape,
                  recipe.determinism);
  comm::Mesh mesh = connect_ranks(session, recipe.mesh, shape,
                                  recipe.determinism.mesh() ? comm::SumOrder::tree : comm::SumOrder::library, device);
  int threads = choose_threads(recipe.run.threads, session.local_size());
  start_threads(threads);
  data::Tokenizers tokenizers = recipe.data.tokenizers();
  data::OpenContext context{.seed = uint64_t(recipe.run.seed),
                            .threads = 1,
                            .index_dir = recipe.data.loader.index_dir,
                            .run_index_dir = "",
                            .write_index = false,
                            .substitutes = recipe.data.loader.substitutes(),
                            .bytes_field = recipe.bytes_field(device.kind),
                            .stage_dir = stage_data(session, recipe)};
  std::unique_ptr<data::Mixture> input = open_training_data(recipe, tokenizers, context);
  std::vector<const data::Dataset*> sets;
  for (const data::Mixture::Part& p : input->parts()) sets.push_back(p.dataset.get());
  agree_on_data(world, sets);
  std::map<std::string, data::Spec> specs;
  for (const data::Dataset* set : sets) specs[set->name()] = set->spec();
  recipe.check_opened(deck, input->size(), specs);
  EngineOptions options = recipe.engine(input->size(), threads, device.kind);
  options.choose_products = product_chooser(world, recipe.run, "");
  Engine engine(options, mesh, device.kind);
  engine.initialise();
  engine.publish();
  const Geometry& g = engine.geometry();
  log::line("{}", version_line());
  log::line("bench    {}  {} ranks x {} threads  batch {} = micro_batch {} x accumulation {} x ranks", recipe.run.name,
            world.size(), threads, g.global_batch, g.micro_batch, g.accumulation);
  if (options.graphs > 0) log::line("graphs   {}", engine.graphs_text());
  log::line("compute  {}", compute_text(recipe.precision));
  print_binding(world, session.host(), threads);
  print_unused(recipe, device.kind);
  const double peak = find_peak(world, engine.queue().kind(), threads, recipe.precision.compute, recipe.profile, 0.5).flops;

  const Times times = time_steps(session, recipe, *input, mesh, engine);
  const double n = double(times.all.size()), median = median_of(times.all);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const int64_t rss = world.max(int64_t(usage.ru_maxrss));
  const bool on_gpu = engine.queue().kind() == device::Kind::cuda;
  OpTimes ops;
  if (on_gpu)
    print_launches(engine, times);
  else
    ops = print_ops(world, engine, times, threads, peak);
  const double flops = double(engine.model().train_flops()) * double(g.global_batch);
  const double hardware = double(world.sum(hardware_flops(engine.queue()))) / n;  // recomputing included
  log::line(
      "step     median {:.1f} ms  min {:.1f}  p99 {:.1f}  max {:.1f}  {:.2f} examples/s  {:.1f} GFLOP/s = {}  loss {:.6f}",
      median, times.all.front(), p99_of(times.all), times.all.back(), double(g.global_batch) / median * 1e3,
      flops / median / 1e6,
      peak > 0 ? fmt::format("{:.1f} % of {:.1f} {}", 100 * flops / median * 1e3 / peak, peak / 1e9,
                             recipe.profile.peak_tflops > 0 ? "given" : on_gpu ? "listed" : "measured")
               : "a part that is not known of the GPU's peak",
      times.loss);
  const size_t alone = times.alone.size(), at_speed = times.at_speed.size();
  auto steady = [](const std::vector<double>& ms) {
    if (ms.empty()) return std::string(" nothing can be said");
    return fmt::format(": median {:.1f} ms, p99 {:.1f} = {:.2f} times that", median_of(ms), p99_of(ms),
                       p99_of(ms) / median_of(ms));
  };
  log::line("steady   others took CPU time from {} of {} steps; of the {} left{}", times.all.size() - alone,
            times.all.size(), alone, steady(times.alone));
  if (alone)
    log::line("         beside these the cores computed at {:.0f} to 100 % of their best; of the {} steps above 95 %{}",
              100 * times.slowest_cores, at_speed, steady(times.at_speed));
  print_memory(engine);
  if (engine.graphs()) print_graphs(engine.queue(), n);
  auto short_of = [](double x) { return std::round(x * 1e3) / 1e3; };
  auto per_step = [&](double seconds) { return short_of(seconds / n * 1e3); };
  nlohmann::ordered_json out = {{"ms_per_step", short_of(median)},
                                {"workload", recipe.run.name},
                                {"dtype", recipe.precision.compute},
                                {"batch", g.global_batch},
                                {"ranks", world.size()},
                                {"threads", threads},
                                {"ms_min", short_of(times.all.front())},
                                {"ms_p99", short_of(p99_of(times.all))},
                                {"ms_max", short_of(times.all.back())},
                                {"steps", times.all.size()},
                                {"steps_alone", alone},
                                {"ms_alone", alone ? short_of(median_of(times.alone)) : 0.0},
                                {"ms_p99_alone", alone ? short_of(p99_of(times.alone)) : 0.0},
                                {"steps_at_speed", at_speed},
                                {"ms_at_speed", at_speed ? short_of(median_of(times.at_speed)) : 0.0},
                                {"ms_p99_at_speed", at_speed ? short_of(p99_of(times.at_speed)) : 0.0},
                                {"examples_per_s", short_of(double(g.global_batch) / median * 1e3)},
                                {"gflops", short_of(flops / median / 1e6)},
                                {"peak_gflops", short_of(peak / 1e9)},
                                {"mfu", peak > 0 ? short_of(flops / median * 1e3 / peak) : 0.0},
                                {"hfu", peak > 0 ? short_of(hardware / median * 1e3 / peak) : 0.0},
                                {"comm_ms", per_step(times.comm_s)},
                                {"data_ms", per_step(times.data_s)},
                                {"planned_mib", double(engine.ledger().total_peak()) / 1048576},
                                {"peak_rss_mib", rss / 1024}};
  if (!on_gpu)
    out.update({{"of_limits", short_of(ops.limit / n / median * 1e3)},
                {"products_ms", per_step(ops.products)},
                {"products_alone_ms", per_step(ops.products_alone)},
                {"other_ops_ms", per_step(ops.all - ops.products)},
                {"optimizer_ms", per_step(ops.optimizer)}});
  if (on_gpu) {
    const device::Transfers& t = times.transfers;
    log::line("transfers per step: {} to the GPU ({} bytes), {} to the host ({} bytes); the host waited {} times", t.uploads,
              base::with_commas(t.uploaded_bytes), t.downloads, base::with_commas(t.downloaded_bytes), t.waits);
    out["uploads"] = t.uploads, out["downloads"] = t.downloads, out["waits"] = t.waits;
    // All that is allocated is kept, so the end is the peak.
    out["peak_memory_gib"] = short_of(double(device::gpu_memory_used_bytes()) / 0x1p30);
  }
  log::line("{}", out.dump());
}

}  // namespace modes
