#include "train/bench.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "train/console.hpp"
#include "train/input.hpp"
#include "train/limits.hpp"
#include "train/threads.hpp"

namespace train {
namespace log = base::log;

namespace {

// The products of `steps` timed steps, by shape, each beside the same call alone: seconds that all would take alone. Shapes
// that make little of the time are counted together, at the pace of the others.
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
                          p.accumulate ? " +=" : p.gelu ? " gelu" : "") +
                  (p.type == device::DType::bf16 ? " bf16" : ""),
              calls / steps, p.seconds / steps * 1e3, flops * calls / p.seconds / 1e9, flops / alone[i] / 1e9,
              100 * calls * alone[i] / p.seconds);
  }
  if (shown < products.size())
    log::line("{:<44}{:>8}{:>12.2f}", fmt::format("{} other shapes", products.size() - shown), "",
              (all - seconds) / steps * 1e3);
  return seconds > 0 ? ideal_s * all / seconds : 0;
}

}  // namespace

void run_bench(comm::Session& session, const Recipe& recipe, config::Deck& deck, const std::string& mesh_selector) {
  recipe.device();
  comm::Comm& world = session.world();
  comm::MeshShape shape = comm::resolve_mesh(recipe.mesh, world.size(), mesh_selector);
  derive_geometry(recipe.train.global_batch,
                  recipe.train.micro_batch ? recipe.train.micro_batch : recipe.train.global_batch, shape,
                  recipe.determinism);
  comm::Mesh mesh =
      comm::make_mesh(session, shape, recipe.determinism.mesh() ? comm::SumOrder::tree : comm::SumOrder::library);
  int threads = choose_threads(recipe.run.threads, session.local_size());
  data::Tokenizers tokenizers = recipe.data.tokenizers();
  data::OpenContext context{.seed = uint64_t(recipe.run.seed),
                            .threads = 1,
                            .index_dir = recipe.data.loader.index_dir,
                            .run_index_dir = "",
                            .write_index = false,
                            .substitutes = recipe.data.loader.substitutes(),
                            .stage_dir = stage_data(session, recipe)};
  std::unique_ptr<data::Mixture> input = open_training_data(recipe, tokenizers, context);
  std::vector<const data::Dataset*> sets;
  for (const data::Mixture::Part& p : input->parts()) sets.push_back(p.dataset.get());
  agree_on_data(world, sets);
  std::map<std::string, data::Spec> specs;
  for (const data::Dataset* set : sets) specs[set->name()] = set->spec();
  recipe.check_opened(deck, input->size(), specs);
  Engine engine(recipe.engine(input->size(), threads), mesh, recipe.device().kind);
  engine.initialise();
  engine.publish();
  const Geometry& g = engine.geometry();
  log::line("{}", version_line());
  log::line("bench    {}  {} ranks x {} threads  batch {} = micro_batch {} x accumulation {} x ranks", recipe.run.name,
            world.size(), threads, g.global_batch, g.micro_batch, g.accumulation);
  log::line("compute  {}", compute_text(recipe.precision));
  print_binding(world, session.host(), threads);
  double peak = double(world.sum(int64_t(measure_peak(world, threads, recipe.precision.type(), 0.5) / 1e6))) * 1e6;

  int64_t steps = recipe.bench.warmup_steps + recipe.bench.steps;
  data::Loader loader(*input, recipe.data.loader, training_plan(g, mesh, 0, steps));
  std::vector<double> ms;
  double data_s = 0, comm_s = 0, loss = 0;
  base::Stopwatch timed;
  for (int64_t step = 1; step <= steps; ++step) {
    if (step == recipe.bench.warmup_steps + 1)
      engine.queue().reset_costs(), kernels::reset_gemm_uses(), timed.restart(), data_s = comm_s = 0;
    world.barrier();
    base::Stopwatch watch;
    const StepReport& report = engine.step(step, [&](int64_t, const models::Inputs& into) {
      data::BatchPtr batch = loader.next();
      models::HostBatch host{.features = {}, .examples = batch->size(), .first_position = batch->positions[0]};
      for (const auto& [name, array] : batch->arrays) host.features[name] = array.view();
      engine.model().prepare(host, true, engine.draws(step), nullptr, into);
    });
    double s = world.max(watch.seconds());
    loss = report.loss, data_s += report.data_s, comm_s += report.comm_s;
    if (step <= recipe.bench.warmup_steps) continue;
    ms.push_back(s * 1e3);
    if (ms.size() >= 2 && world.max(timed.seconds()) > recipe.bench.max_s) break;
  }
  std::vector<double> sorted = ms;
  std::sort(sorted.begin(), sorted.end());
  double median =
      sorted.size() % 2 ? sorted[sorted.size() / 2] : (sorted[sorted.size() / 2 - 1] + sorted[sorted.size() / 2]) / 2;

  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  int64_t rss = world.max(int64_t(usage.ru_maxrss));
  double n = double(ms.size());
  const double ideal_gemm_s = print_products(world, threads, n);
  const double copy = measure_copy(world, threads, 0.3);
  // Limits: products as fast as alone; everything else as fast as copying the bytes that it cannot avoid, or as fast as
  // its FLOPs in the fastest product.
  log::line("{:<22}{:>8}{:>12}{:>10}{:>10}{:>10}{:>9}", "op (per step)", "calls", "ms", "GFLOP/s", "GB/s", "of limit",
            "share");
  double ops_s = 0, limit_s = 0;
  for (int i = 0; i < int(kernels::Op::count); ++i) {
    const device::OpCost& c = engine.queue().costs()[size_t(i)];
    if (!c.calls) continue;
    double limit = kernels::Op(i) == kernels::Op::gemm
                       ? ideal_gemm_s
                       : std::max(double(c.bytes) / copy, double(c.flops) * world.size() / peak);
    ops_s += c.seconds, limit_s += limit;
    log::line("{:<22}{:>8.0f}{:>12.2f}{:>10.1f}{:>10.2f}{:>9.1f}%{:>8.1f}%", kernels::name_of(kernels::Op(i)),
              double(c.calls) / n, c.seconds / n * 1e3, double(c.flops) / c.seconds / 1e9,
              double(c.bytes) / c.seconds / 1e9, 100 * limit / c.seconds, c.seconds / n / median * 1e5);
  }
  std::string plain;
  if (world.size() > 1) {  // what MPI takes for as many bytes as the gradients have, nothing else under way
    double s = measure_all_reduce(world, 4 * engine.layout().total_elements());
    plain = fmt::format("{:.0f}% of plain", 100 * comm_s / n / s);
  }
  log::line("{:<22}{:>8}{:>12.2f}{:>38}{:>8.1f}%", "communication", "", comm_s / n * 1e3, plain,
            comm_s / n / median * 1e5);
  log::line("{:<22}{:>8}{:>12.2f}{:>38}{:>8.1f}%", "data", "", data_s / n * 1e3, "", data_s / n / median * 1e5);
  double mean = 0;
  for (double x : ms) mean += x / n;
  double other = mean - (ops_s + comm_s + data_s) / n * 1e3;
  log::line("{:<22}{:>8}{:>12.2f}{:>38}{:>8.1f}%", "other", "", other, "", other / mean * 100);
  const double p99 = sorted[std::min(sorted.size() - 1, size_t(0.99 * n))];
  log::line(
      "limits   products alone {:.1f} ms, other ops {:.1f} ms (copying at {:.1f} GB/s): together {:.1f} % of the step",
      ideal_gemm_s / n * 1e3, (limit_s - ideal_gemm_s) / n * 1e3, copy / 1e9, limit_s / n / median * 1e5);
  double flops = 3 * double(engine.model().forward_flops()) * double(g.global_batch);
  log::line(
      "step     median {:.1f} ms  min {:.1f}  p99 {:.1f}  max {:.1f}  {:.2f} examples/s  {:.1f} GFLOP/s = {:.1f} % of "
      "{:.1f} "
      "measured  loss {:.6f}",
      median, sorted.front(), p99, sorted.back(), double(g.global_batch) / median * 1e3, flops / median / 1e6,
      100 * flops / median * 1e3 / peak, peak / 1e9, loss);
  print_memory(engine);
  log::line(
      "{{\"ms_per_step\": {:.3f}, \"workload\": {}, \"dtype\": \"{}\", \"batch\": {}, \"ranks\": {}, \"threads\": "
      "{}, "
      "\"ms_min\": {:.3f}, \"ms_p99\": {:.3f}, \"ms_max\": {:.3f}, \"steps\": {}, \"examples_per_s\": {:.3f}, "
      "\"gflops\": {:.2f}, "
      "\"peak_gflops\": {:.2f}, \"of_limits\": {:.4f}, "
      "\"data_ms\": {:.3f}, \"peak_rss_mib\": {}}}",
      median, nlohmann::json(recipe.run.name).dump(), recipe.precision.compute, g.global_batch, world.size(), threads,
      sorted.front(), p99, sorted.back(), ms.size(), double(g.global_batch) / median * 1e3, flops / median / 1e6,
      peak / 1e9, limit_s / n / median * 1e3, data_s / n * 1e3, rss / 1024);
}

}  // namespace train
