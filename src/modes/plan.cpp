// SPDX-License-Identifier: Apache-2.0
#include "modes/plan.hpp"

#include <array>

#include "base/log.hpp"
#include "base/text.hpp"
#include "checkpoint/checkpoint.hpp"
#include "io/files.hpp"
#include "kernels/dispatch.hpp"
#include "modes/mode.hpp"
#include "modes/parameter_rows.hpp"
#include "modes/plan_bounds.hpp"
#include "modes/plan_data.hpp"
#include "modes/step_graph.hpp"
#include "train/job.hpp"
#include "train/run_state.hpp"
#include "train/unused.hpp"

namespace modes {
using namespace train;
namespace log = base::log;
namespace {

std::string gib(int64_t bytes) { return fmt::format("{:.3f} GiB", double(bytes) / 0x1p30); }

// Counts of a step. numbers: FLOPs, then calls and bytes of the four kinds of traffic. calls: calls
// of ops.
struct Counts {
  std::array<int64_t, 9> numbers{};
  device::PlannedCalls calls;
};

Counts counts_of(step::Engine& engine, comm::Mesh& mesh, int64_t passes) {
  engine.queue().reset_costs();
  mesh.fsdp->reset_traffic();
  mesh.replica->reset_traffic();
  engine.plan_step(passes);
  Counts out{};
  out.calls = engine.queue().planned_calls();
  for (const device::OpCost& cost : engine.queue().costs()) out.numbers[0] += cost.flops;
  size_t at = 1;
  for (const comm::Traffic* t : {&mesh.fsdp->gathered(), &mesh.fsdp->scattered(),
                                 &mesh.fsdp->reduced(), &mesh.replica->reduced()}) {
    out.numbers[at++] = t->calls;
    out.numbers[at++] = t->bytes;
  }
  return out;
}

// Counts a step. Only the first passes of a long step are run in the plan: each further pass adds
// as much as the last one of these.
void count_step(step::Engine& engine, comm::Mesh& mesh, Plan& plan) {
  constexpr int64_t kWalked = 4;
  int64_t passes = engine.geometry().accumulation, walked = std::min(passes, kWalked);
  Counts all = counts_of(engine, mesh, walked);
  if (passes > walked) {
    Counts fewer = counts_of(engine, mesh, walked - 1);
    auto extend = [&](int64_t& count, int64_t of_fewer) {
      count += (passes - walked) * (count - of_fewer);
    };
    for (size_t i = 0; i < all.numbers.size(); ++i) extend(all.numbers[i], fewer.numbers[i]);
    for (auto& [call, count] : all.calls) extend(count, fewer.calls[call]);
  }
  plan.calls = std::move(all.calls);
  plan.step_flops = all.numbers[0];
  size_t at = 1;
  for (comm::Traffic* t : {&plan.traffic.fsdp_gather, &plan.traffic.fsdp_scatter,
                           &plan.traffic.fsdp_reduce, &plan.traffic.replica_reduce}) {
    t->calls = all.numbers[at++];
    t->bytes = all.numbers[at++];
  }
}

// Opens the training data if the files are there. Their size defines the length of an epoch.
void open_if_there(Job& job) {
  try {
    job.open_data();
  } catch (const base::Error&) {
    using Unit = config::Duration::Unit;
    const train::TrainOptions& train = job.recipe().train;
    if (train.total.unit == Unit::epochs || train.until_input_ends())
      base::fail(base::Exit::data,
                 "train.total_{}: the size of the training data is not known here; their files "
                 "cannot be read",
                 train.until_input_ends() ? "steps = \"input\"" : "epochs");
  }
}

int ranks_of(const Recipe& recipe, const std::string& mesh_selector) {
  const int64_t wanted = comm::wanted_ranks(recipe.mesh, mesh_selector);
  if (wanted > comm::kMostRanks)
    base::fail(base::Exit::mesh,
               "mesh.replica x mesh.fsdp = {} ranks; at most {} can be planned for",
               base::with_commas(wanted), base::with_commas(comm::kMostRanks));
  return int(wanted);
}

void print_size(const Recipe& recipe, const Plan& plan, const models::Model& model) {
  int64_t parameters = 0;
  for (const shard::Parameter& p : model.parameters()) parameters += p.count();
  const step::Geometry& g = plan.geometry;
  log::line("batch    global {} = {} ranks x micro_batch {} x accumulation {}{}", g.global_batch,
            plan.mesh.ranks(), g.micro_batch, g.accumulation,
            recipe.determinism.mesh()
                ? fmt::format("  slices {} ({} per pass)", g.total_slices, g.slices)
                : "");
  log::line("length   {} steps = {} examples", base::with_commas(plan.total_steps),
            base::with_commas(plan.total_steps * g.global_batch));
  log::line("model    {}  {} parameters in {} tensors", recipe.model.kind,
            base::with_commas(parameters), model.parameters().size());
  const double flops = double(model.train_flops()), batch = double(g.global_batch);
  log::line(
      "flops    {:.4g} GFLOP per example forward+backward (products of the model, padding "
      "counted); {:.4g} TFLOP per step; {:.4g} EFLOP in all",
      flops / 1e9, flops * batch / 1e12, flops * batch * double(plan.total_steps) / 1e18);
}

void print_memory_and_traffic(const Plan& plan) {
  log::line("memory   per rank, by category");
  int64_t total = 0;
  for (const auto& [name, bytes] : plan.memory) {
    log::line("           {:<14}{:>16} bytes  {:>8} MiB", name, base::with_commas(bytes),
              base::mebibytes(bytes));
    total += bytes;
  }
  log::line("           {:<14}{:>16} bytes  {:>8} MiB", "total", base::with_commas(total),
            base::mebibytes(total));
  if (plan.memory.count("scratch"))
    log::line(
        "           in addition: what CUDA, its libraries and NCCL keep for themselves (--mode "
        "bench shows how much)");
  log::line("traffic  per rank and step");
  auto traffic = [](const char* name, const comm::Traffic& t) {
    if (t.calls)
      log::line("           {:<24}{:>6} calls {:>18} bytes", name, t.calls,
                base::with_commas(t.bytes));
  };
  traffic("fsdp all-gather", plan.traffic.fsdp_gather);
  traffic("fsdp reduce-scatter", plan.traffic.fsdp_scatter);
  traffic("fsdp all-reduce", plan.traffic.fsdp_reduce);
  traffic("replica all-reduce", plan.traffic.replica_reduce);
}

void print_schedules(const Recipe& recipe, const Plan& plan, const models::Model& model) {
  optim::Policies policies =
      optim::resolve_policies(recipe.optimizer, recipe.schedule, model.parameters());
  std::vector<optim::Schedule> schedules =
      optim::make_schedules(policies.schedules, recipe.schedule,
                            {plan.total_steps, plan.geometry.global_batch, plan.examples});
  log::line("schedule at step (the first is 1; x learning_rate {:g} for the rate)",
            recipe.optimizer.learning_rate);
  for (size_t i = 0; i < schedules.size(); ++i) {
    std::string text;
    int64_t shown = 0;
    for (double at : {0.0, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0}) {
      int64_t step = std::max<int64_t>(1, int64_t(at * double(plan.total_steps)));
      if (step == shown) continue;  // a short run rounds to the same step again
      shown = step;
      text += fmt::format("  {}:{:.4g}", step, schedules[i].at(step - 1));
    }
    log::line("           {:<10}{}", policies.schedules[i], text);
  }
}

int run_plan(Call& call) {
  const Recipe& recipe = call.recipe;
  const std::string& selector = call.start.mesh_selector;
  const int ranks = call.ranks ? call.ranks : ranks_of(recipe, selector);
  const Plan plan = make_plan(recipe, call.deck, ranks, selector, !call.graph.empty());
  const std::shared_ptr<const models::Model> model = recipe.made_model();
  log::line("plan     {} ranks = replica {} x fsdp {}  parameters={} optimizer={} recompute={}",
            ranks, plan.mesh.replica, plan.mesh.fsdp,
            base::name_of(shard::kPlacementNames, recipe.sharding.parameters),
            base::name_of(shard::kPlacementNames, recipe.sharding.optimizer),
            base::name_of(models::kRecomputeNames, recipe.memory.recompute));
  log::line("device   {}", plan.device.text);
  print_unused(recipe, plan.device.kind);
  print_size(recipe, plan, *model);
  print_memory_and_traffic(plan);
  if (plan.device.kind == device::Kind::cuda) print_bounds(recipe, plan);
  log::line("disk     checkpoint {} bytes ({}), of which {} are tensors; keeps {} = {}",
            base::with_commas(plan.checkpoint_bytes), gib(plan.checkpoint_bytes),
            base::with_commas(plan.dataset_bytes), recipe.checkpoint.keep_last,
            gib(plan.checkpoint_bytes * recipe.checkpoint.keep_last));
  if (!plan.lines.classes.empty()) log::line("classes  for which samples are drawn by class");
  for (const std::string& line : plan.lines.classes) log::line("           {}", line);
  if (!plan.lines.features.empty())
    log::line("features that evaluations keep, besides what they fit");
  for (const std::string& line : plan.lines.features) log::line("           {}", line);
  print_schedules(recipe, plan, *model);
  if (!call.graph.empty()) {
    io::write_file_atomically(call.graph, plan.graph);
    log::line("graph    {}; dot -Tsvg {} draws it", call.graph, call.graph);
  }
  if (!plan.lines.parameters.empty())
    log::line(
        "parameters (decay: weight_decay x decay_scale; rate: multiplier of the learning rate)");
  for (const std::string& line : plan.lines.parameters) log::line("           {}", line);
  return 0;
}

}  // namespace

Plan make_plan(const Recipe& recipe, config::Deck& deck, int ranks,
               const std::string& mesh_selector, bool graph) {
  Job job(recipe, deck, nullptr, mesh_selector, {.writes_indexes = false});
  job.connect_on_paper(ranks);
  open_if_there(job);
  job.build_engine();
  step::Engine& engine = job.engine();
  Plan plan;
  plan.mesh = job.mesh().shape;
  plan.device = job.device();
  plan.examples = job.data_size();
  plan.total_steps = recipe.total_steps(job.data_length());
  plan.geometry = engine.geometry();
  count_step(engine, job.mesh(), plan);
  if (graph) {
    const int64_t passes = plan.geometry.accumulation, drawn = std::min<int64_t>(passes, 2);
    plan.graph = graph_of_step(
        fmt::format("{}: a step on {} ranks = replica {} x fsdp {}{}", recipe.run.name, ranks,
                    plan.mesh.replica, plan.mesh.fsdp,
                    passes > drawn ? fmt::format(", {} of {} passes", drawn, passes) : ""),
        [&] { engine.plan_step(drawn); });
  }
  for (const auto& [name, entry] : engine.ledger().entries()) plan.memory[name] = entry.peak;
  plan.arena_peak = engine.ledger().peak_of("activations");
  std::vector<shard::TensorSlice> state = engine.state();
  plan.lines.classes = class_rows(job, ranks);
  plan.lines.features = feature_rows(job, ranks);
  if (recipe.plan.parameters) plan.lines.parameters = parameter_rows(recipe, engine);
  plan.dataset_bytes = checkpoint::planned_dataset_bytes(state);
  RunState first(recipe, deck);
  first.step = 1;
  plan.checkpoint_bytes = checkpoint::planned_bytes(first.to_checkpoint(std::move(state)));
  return plan;
}

Mode plan_row() {
  return {.name = "plan", .doc = "memory, FLOPs, traffic, disk", .on_paper = true, .run = run_plan};
}

}  // namespace modes
