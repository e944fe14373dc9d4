// SPDX-License-Identifier: Apache-2.0
#include "train/start_lines.hpp"

#include "base/log.hpp"
#include "base/span.hpp"
#include "base/text.hpp"
#include "train/console.hpp"
#include "train/phases.hpp"
#include "train/unused.hpp"

namespace train {
namespace log = base::log;

namespace {

std::string order_text(const TrainOptions& train) {
  if (train.shuffle == data::Shuffle::classes)
    return fmt::format("by class, power {:g}", train.class_power);
  if (train.shuffle == data::Shuffle::stratified)
    return fmt::format("stratified, {} examples of each of {} classes in a batch",
                       train.global_batch / train.classes_per_batch, train.classes_per_batch);
  if (train.shuffle != data::Shuffle::blocks)
    return base::name_of(data::kShuffleNames, train.shuffle);
  return fmt::format("blocks of {}, window {}", train.shuffle_block, train.shuffle_window);
}

const char* determinism_text(const step::DeterminismOptions& determinism) {
  switch (determinism.level) {
    case step::Level::run:
      return "run (same mesh, same bits)";
    case step::Level::mesh:
      return "mesh (same bits on every power-of-two mesh)";
    case step::Level::anywhere:
      break;
  }
  return "anywhere (same bits on every power-of-two mesh and every CPU)";
}

// In parts, because each counts as progress for the watchdog: where many ranks share a core, all 16
// MiB can take seconds.
double all_reduce_s(comm::Comm& comm, comm::Comm& world, std::vector<float>& probe) {
  constexpr int64_t kParts = 4;
  const base::Span span("time an exchange");
  world.barrier();
  base::Stopwatch watch;
  const device::View all = device::view(probe.data(), int64_t(probe.size()));
  const int64_t each = all.count / kParts;
  for (int64_t part = 0; part < kParts; ++part)
    comm.all_reduce(all.slice(part * each, each)).wait();
  return world.max(watch.seconds());
}

}  // namespace

ExchangeTimes time_exchanges(const comm::Mesh& mesh, bool same_bits) {
  // New pages cost as much as a sum of them, so all sums use the same ones.
  std::vector<float> probe(4 << 20);
  comm::Comm& world = *mesh.world;
  ExchangeTimes times;
  times.world_s = all_reduce_s(world, world, probe);
  // A group of all ranks adds up as the world does, unless its bits are fixed.
  auto time_of = [&](comm::Comm& group) {
    const bool alike = group.size() == world.size() && !same_bits;
    return alike ? times.world_s : all_reduce_s(group, world, probe);
  };
  times.fsdp_s = time_of(*mesh.fsdp);
  times.replica_s = time_of(*mesh.replica);
  return times;
}

void print_start(Attempt& attempt, const ExchangeTimes& exchanges, const host::Peak& peak) {
  const Recipe& recipe = attempt.recipe;
  Job& job = attempt.job;
  step::Engine& engine = attempt.engine();
  const step::Geometry& g = engine.geometry();
  const data::Mixture& data = job.data();
  const bool same_bits = recipe.determinism.mesh();
  log::line("{}", version_line());
  log::line("built    {}  {}", build_features(), library_features());
  log::line("deck     {} sha256={} overrides={}  everything resolved: {}/deck.resolved.toml",
            attempt.start.deck_path, job.deck().digest().substr(0, 8), attempt.start.overrides,
            recipe.run.dir);
  log::line("run      dir={} seed={} determinism={}  lock taken by {}", recipe.run.dir,
            recipe.run.seed, determinism_text(recipe.determinism), attempt.directory->holder());
  print_mesh(job.session(), job.mesh(), recipe, job.device(), job.threads());
  print_unused(recipe, job.device().kind);
  log::line("check    all-reduce 16 MiB: world {:.1f} ms, fsdp {:.1f} ms, replica {:.1f} ms",
            1e3 * exchanges.world_s, 1e3 * exchanges.fsdp_s, 1e3 * exchanges.replica_s);
  log::line("batch    global {} = {} ranks x micro_batch {} x accumulation {}{}", g.global_batch,
            job.mesh().shape.ranks(), g.micro_batch, g.accumulation,
            same_bits ? fmt::format("  slices {} ({} per pass)", g.total_slices, g.slices) : "");
  const int64_t examples = attempt.total * g.global_batch;
  log::line("length   {} steps = {} examples = {:.1f} epochs of {} ({}){}",
            base::with_commas(attempt.total), base::with_commas(examples),
            double(examples) / double(data.size()), data.name(), base::with_commas(data.size()),
            recipe.train.until_input_ends() ? "; the input ends there" : "");
  if (const int64_t every = recipe.train.test_every; every > 0)
    log::line("phases   {}  (T: an epoch of training, e: the evaluators)",
              phase_list(attempt.epochs_ended(attempt.total), every));
  log::line("data     {}  {}, {} samples  {}  order: {}", data.name(), data.summary(),
            base::with_commas(data.size()), data::text_of(data.spec()), order_text(recipe.train));
  print_model(engine, recipe);
  log::line("compute  {}; {:.4g} GFLOP per example forward+backward; {}",
            compute_text(recipe.precision), double(engine.model().train_flops()) / 1e9, peak.text);
  if (const std::string graphs = engine.graphs_text(); !graphs.empty())
    log::line("graphs   {}", graphs);
  print_memory(engine);
}

}  // namespace train
