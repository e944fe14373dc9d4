#include "train/trainer.hpp"

#include <cmath>

#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "io/files.hpp"
#include "train/input.hpp"
#include "train/signals.hpp"

namespace train {
namespace log = base::log;

namespace {

std::string order_text(const TrainOptions& train) {
  if (train.shuffle != "blocks") return train.shuffle;
  return fmt::format("blocks of {}, window {}", train.shuffle_block, train.shuffle_window);
}

}  // namespace

Trainer::Trainer(comm::Session& session, const Recipe& recipe, const config::Deck& deck, const std::string& deck_path,
                 const std::string& mesh_selector)
    : session_(session),
      recipe_(recipe),
      deck_(deck),
      deck_path_(deck_path),
      threads_(choose_threads(recipe.run.threads, session.local_size())) {
  start_s_ = base::now_s();
  if (recipe.run.device == "cuda")
    base::fail(base::Exit::mesh, "run.device = \"cuda\": this build has no CUDA back end; use \"cpu\" or \"auto\"");
  comm::MeshShape shape = comm::resolve_mesh(recipe.mesh, session.world().size(), mesh_selector);
  // Everything that can be refused is refused before anything is created.
  derive_geometry(recipe.train.global_batch,
                  recipe.train.micro_batch ? recipe.train.micro_batch : recipe.train.global_batch, shape,
                  recipe.determinism);
  mesh_ = comm::make_mesh(session, shape, recipe.determinism.mesh() ? comm::SumOrder::tree : comm::SumOrder::library);
  open_data();
  total_ = recipe.total_steps(data_->size());
  if (total_ < 1) base::fail(base::Exit::config, "train.total_*: the run would have no step");
}

Trainer::~Trainer() = default;

void Trainer::open_data() {
  data::OpenContext context{.seed = uint64_t(recipe_.run.seed),
                            .threads = int(recipe_.data.loader.threads),
                            .index_dir = recipe_.data.loader.index_dir,
                            .run_index_dir = recipe_.run.dir + "/index",
                            .stage_dir = stage_data(session_, recipe_)};
  data::Tokenizers tokenizers = recipe_.data.tokenizers();
  data_ = open_training_data(recipe_, tokenizers, context);
  for (const auto& [name, options] : recipe_.evals) {
    Evaluation e{name, options, eval::make_evaluator(options),
                 data::open_dataset(recipe_.data, tokenizers, options.data, context), 0};
    e.every = period(options.every, recipe_.total_steps(data_->size()));
    evaluations_.push_back(std::move(e));
  }
}

base::Exit Trainer::run() {
  catch_stop_signals();
  start();
  while (step_ < total_) {
    base::set_step(++step_);
    const StepReport& report = engine_->step(step_, [this](int64_t m, const models::Inputs& into) { feed(m, into); });
    inspect(report);
    record(report);
    evaluate(false);
    bool stop = step_ < total_ && mesh_.world->max(int64_t(stop_signalled()));
    if (stop || step_ == total_ ||
        config::is_time(step_, period(recipe_.checkpoint.every, total_), total_, true, false))
      save();
    metrics_->flush_if_due();
    if (stop) {
      log::line("stopped  step={} of {}: a signal asked for it; start the same command to continue", step_, total_);
      log::line("done     exit={}", int(base::Exit::requeue));
      return base::Exit::requeue;
    }
  }
  finish();
  return base::Exit::finished;
}

void Trainer::start() {
  base::set_phase("start");
  directory_ = std::make_unique<RunDirectory>(*mesh_.world, recipe_.run.dir);
  log::open_files(directory_->path() + "/logs");
  log::line("{}", version_line());
  log::line("deck     {} sha256={}  everything resolved: {}/deck.resolved.toml", deck_path_,
            deck_.digest().substr(0, 8), recipe_.run.dir);
  log::line("run      dir={} seed={} determinism={}", recipe_.run.dir, recipe_.run.seed,
            recipe_.determinism.mesh() ? "mesh (same bits on every power-of-two mesh)" : "run (same mesh, same bits)");
  print_mesh(session_, mesh_, recipe_, threads_);
  double world_ms = 0;
  {
    std::vector<float> probe(4 << 20);
    base::Stopwatch watch;
    mesh_.world->all_reduce(device::view(probe.data(), int64_t(probe.size()))).wait();
    world_ms = mesh_.world->max(watch.seconds()) * 1e3;
  }
  log::line("check    all-reduce 16 MiB: world {:.1f} ms", world_ms);

  engine_ = std::make_unique<Engine>(recipe_.engine(data_->size(), threads_), mesh_, device::Kind::cpu);
  const Geometry& g = engine_->geometry();
  log::line("batch    global {} = {} ranks x micro_batch {} x accumulation {}{}", g.global_batch, mesh_.shape.ranks(),
            g.micro_batch, g.accumulation,
            recipe_.determinism.mesh() ? fmt::format("  slices {} ({} per pass)", g.total_slices, g.slices) : "");
  log::line("length   {} steps = {} examples = {:.1f} epochs of {} ({})", base::with_commas(total_),
            base::with_commas(total_ * g.global_batch), double(total_ * g.global_batch) / double(data_->size()),
            data_->name(), base::with_commas(data_->size()));
  log::line("data     {}  {}, {} samples  {}  order: {}", data_->name(), data_->summary(),
            base::with_commas(data_->size()), data::text_of(data_->spec()), order_text(recipe_.train));
  print_model(*engine_, recipe_);
  progress_.peak_flops = mesh_.world->sum(int64_t(measure_peak(*mesh_.world, threads_, 0.15) / 1e6)) * 1e6;
  log::line(
      "compute  f32; {:.3g} GFLOP per example forward+backward; MFU against {:.0f} GFLOP/s (f32 products, measured now "
      "on all ranks)",
      3 * double(engine_->model().forward_flops()) / 1e9, progress_.peak_flops / 1e9);
  print_memory(*engine_);

  bool resumed = restore(), branched = !resumed && branch();
  if (!resumed && !branched) initialise();
  if (!resumed && mesh_.rank() == 0)
    io::write_file_atomically(recipe_.run.dir + "/deck.resolved.toml", deck_.resolved());
  engine_->publish();
  std::string table = parameter_table(*engine_, mesh_);
  if (mesh_.rank() == 0) io::write_file_atomically(recipe_.run.dir + "/logs/parameters.txt", table);
  metrics_ = std::make_unique<Metrics>(recipe_.run.dir, step_, progress_.attempts, mesh_.rank() == 0, recipe_.log);
  metrics_->set_text("origin", origin_);
  log::line("disk     checkpoint {:.2f} MiB; keeps {}", double(checkpoint::planned_bytes(snapshot())) / 0x1p20,
            recipe_.checkpoint.keep_last);
  std::string evals;
  for (const Evaluation& e : evaluations_)
    evals += fmt::format("  {} every {} ({})", e.name, e.every, e.dataset->size());
  if (!evals.empty()) log::line("evals  {}", evals);
  open_bad_samples();
  loader_ = std::make_unique<data::Loader>(*data_, loader_options_, training_plan(g, mesh_, step_, total_));
  log::line("start    step={} from={} setup_s={:.1f}  table: logs/parameters.txt", step_,
            resumed                     ? "checkpoint"
            : branched                  ? "branch"
            : recipe_.init.from.empty() ? "random_init"
                                        : "init",
            base::now_s() - start_s_);
  progress_.charge(&Progress::Times::setup);
  if (step_ == 0) evaluate(true);
  base::set_phase("train");
}

bool Trainer::restore() {
  checkpoint::State state;
  state.tensors = engine_->state();
  std::optional<checkpoint::Restored> restored =
      checkpoint::restore(*mesh_.world, directory_->checkpoints(), state, recipe_.checkpoint);
  if (!restored) return false;
  log::line("restore  step={} file={} mib_per_rank={:.1f} s={:.2f}", restored->step, restored->file,
            double(restored->bytes) / 0x1p20, restored->seconds);
  take_over(state);
  if (!recipe_.init.from.empty() || !recipe_.checkpoint.branch_from.empty())
    log::line(
        "init     this run goes on from its own checkpoint; init.from and checkpoint.branch_from were for its start");
  return true;
}

bool Trainer::branch() {
  const std::string& from = recipe_.checkpoint.branch_from;
  if (from.empty()) return false;
  checkpoint::State state;
  state.tensors = engine_->state();
  checkpoint::Restored restored = checkpoint::branch(*mesh_.world, from, state);
  log::line("branch   step={} file={} mib_per_rank={:.1f} s={:.2f}", restored.step, restored.path,
            double(restored.bytes) / 0x1p20, restored.seconds);
  take_over(state);
  if (step_ == total_)
    base::fail(base::Exit::config,
               "checkpoint.branch_from: {} is at step {}, the end of this deck; raise train.total_*", restored.path,
               step_);
  progress_.attempts = 1;  // in this directory
  origin_ = fmt::format("branch of {} at step {}", restored.path, step_);
  return true;
}

void Trainer::take_over(const checkpoint::State& state) {
  step_ = state.step;
  if (step_ > total_)
    base::fail(base::Exit::config,
               "the checkpoint is at step {}, beyond the end of this deck ({} steps); raise train.total_*", step_,
               total_);
  progress_.load(state.numbers);
  if (auto origin = state.texts.find("origin"); origin != state.texts.end()) origin_ = origin->second;
}

void Trainer::initialise() {
  engine_->initialise();
  const std::string& from = recipe_.init.from;
  if (from.empty()) return;
  checkpoint::InitReport report =
      checkpoint::load_initial_weights(*mesh_.world, recipe_.init, engine_->state(), engine_->model().patch_tables());
  log::line("init     from={} {} s={:.2f}", from, report.summary, report.seconds);
  constexpr int kMostLines = 20;  // on the console; loaded tensors are the rule, so only the others
  std::string table;
  int shown = 0;
  for (const std::string& text : report.lines) {
    table += text + "\n";
    if (!text.starts_with("loaded ") && ++shown <= kMostLines) log::line("           {}", text);
  }
  if (shown > kMostLines) log::line("           and {} more in {}/logs/init.txt", shown - kMostLines, recipe_.run.dir);
  if (mesh_.rank() == 0) io::write_file_atomically(recipe_.run.dir + "/logs/init.txt", table);
  origin_ = "parameters of " + from;
}

void Trainer::open_bad_samples() {
  std::map<std::string, int64_t> sizes;
  for (const data::Mixture::Part& p : data_->parts()) sizes[p.dataset->name()] = p.dataset->size();
  for (const Evaluation& e : evaluations_) sizes[e.dataset->name()] = e.dataset->size();
  bad_samples_ = std::make_unique<BadSamples>(*mesh_.world, directory_->logs() + "/bad_samples.txt",
                                              recipe_.data.loader.max_bad_sample_fraction, std::move(sizes));
  loader_options_ = recipe_.data.loader;
  loader_options_.log = bad_samples_->log();
}

void Trainer::feed(int64_t, const models::Inputs& into) {
  data::BatchPtr batch = loader_->next();
  models::HostBatch host{.features = {}, .examples = batch->size(), .first_position = batch->positions[0]};
  for (const auto& [name, array] : batch->arrays) host.features[name] = array.view();
  engine_->model().prepare(host, true, engine_->draws(step_), nullptr, into);
}

void Trainer::inspect(const StepReport& report) const {
  // Every rank has the same sums, so all come here together.
  const char* way_out =
      "The newest checkpoint is intact: lower optimizer.learning_rate or set optimizer.clip_norm, and start again";
  auto first_bad = [&](const std::vector<double>& norms) {
    for (size_t i = 0; i < norms.size(); ++i)
      if (!std::isfinite(norms[i])) return engine_->layout().parameters()[i].path;
    return std::string();
  };
  if (!report.finite) {
    std::string tensor = first_bad(report.gradients.gradients.per_parameter);
    base::fail(base::Exit::nonfinite,
               "step {}: loss={}{} is not finite; nothing was updated and no checkpoint written. {}", step_,
               report.loss, tensor.empty() ? "" : " and the gradient of " + tensor, way_out);
  }
  if (!std::isfinite(report.update.parameters.global))
    base::fail(base::Exit::nonfinite,
               "step {}: loss={}, but after the update {} is not finite; no checkpoint of it was written. {}", step_,
               report.loss, first_bad(report.update.parameters.per_parameter), way_out);
}

// 0 = never, in every unit (as a length, 0 epochs would be one step).
int64_t Trainer::period(const config::Duration& every, int64_t total) const {
  return every.value == 0 ? 0 : every.steps(recipe_.train.global_batch, data_->size(), total);
}

void Trainer::record(const StepReport& report) {
  const Geometry& g = engine_->geometry();
  double before = progress_.times.training;
  progress_.charge(&Progress::Times::training);
  double seconds = progress_.times.training - before;
  progress_.step_done(seconds, g.global_batch);
  double flops = 3 * double(engine_->model().forward_flops()) * double(g.global_batch);
  double mfu = flops / seconds / progress_.peak_flops;
  double core_hours = progress_.times.training * threads_ * mesh_.shape.ranks() / 3600;

  int64_t bad_samples = loader_options_.substitutes() ? bad_samples_->agree() : 0;
  progress_.bad_samples += bad_samples;

  bool metrics_due = config::is_time(step_, recipe_.log.metrics_every_steps, total_);
  if (metrics_due) {
    Metrics::Row row = {{"loss", report.loss},
                        {"loss_ar", report.loss_ar},
                        {"loss_parallel", report.loss_parallel},
                        {"loss_per_token", report.token_nll},
                        {"l2_grads", report.gradients.gradients.global},
                        {"l2_params", report.update.parameters.global},
                        {"l2_updates", report.update.updates.global},
                        {"clip", report.gradients.clip}};
    for (size_t i = 0; i < report.update.schedules.size(); ++i)
      row.emplace_back(i ? fmt::format("schedule{}", i) : "schedule", report.update.schedules[i]);
    for (size_t i = 0; i < recipe_.log.groups.size(); ++i) {
      row.emplace_back(fmt::format("l2_grads[{}]", recipe_.log.groups[i]), report.gradients.gradients.per_group[i]);
      row.emplace_back(fmt::format("l2_params[{}]", recipe_.log.groups[i]), report.update.parameters.per_group[i]);
      row.emplace_back(fmt::format("l2_updates[{}]", recipe_.log.groups[i]), report.update.updates.per_group[i]);
    }
    row.insert(row.end(), {{"ms", seconds * 1e3},
                           {"data_ms", report.data_s * 1e3},
                           {"comm_ms", report.comm_s * 1e3},
                           {"compute_ms", (seconds - report.data_s - report.comm_s) * 1e3},
                           {"examples_s", double(g.global_batch) / seconds},
                           {"mfu", mfu},
                           {"examples_seen", double(step_) * double(g.global_batch)},
                           {"epoch", double(step_) * double(g.global_batch) / double(data_->size())},
                           {"bad_samples", double(bad_samples)},
                           {"progress", double(step_) / double(total_)},
                           {"core_hours", core_hours},
                           {"uptime_s", base::now_s() - start_s_}});
    for (int k = 0; recipe_.train.mixture.size() > 0 && k < int(data_->parts().size()); ++k) {
      const data::Dataset& set = data_->dataset(k);
      double seen = double(data_->seen(k, step_ * g.global_batch));
      row.emplace_back(fmt::format("examples_seen[{}]", set.name()), seen);
      row.emplace_back(fmt::format("epoch[{}]", set.name()), seen / double(set.size()));
    }
    metrics_->train_row(step_, row);
  }
  if (step_ > 5 && !config::is_time(step_, recipe_.log.console_every_steps, total_)) return;
  std::string line =
      fmt::format("step={} loss={} loss_ar={} loss_parallel={} l2_grads={:.4g} schedule={:.4g} ms={:.1f}", step_,
                  loss_text(report.loss), loss_text(report.loss_ar), loss_text(report.loss_parallel),
                  report.gradients.gradients.global,
                  report.update.schedules.empty() ? 1.0f : report.update.schedules[0], seconds * 1e3);
  if (!progress_.timed())
    line += " note=\"first steps, not timed\"";
  else
    line += fmt::format(" examples_s={:.1f} mfu={:.1f}% data_ms={:.1f} comm_ms={:.1f} eta={}",
                        double(g.global_batch) / seconds, 100 * mfu, report.data_s * 1e3, report.comm_s * 1e3,
                        base::hms(double(total_ - step_) * progress_.mean_step_s()));
  log::line("{}", line);
}

void Trainer::evaluate(bool at_start) {
  base::set_phase("evaluate");
  for (Evaluation& e : evaluations_) {
    bool now = at_start ? e.options.at_start
                        : config::is_time(step_, e.every, total_, e.options.at_end, false) ||
                              (e.options.at_end && step_ == total_);
    if (!now) continue;
    base::Stopwatch watch;
    eval::Result result =
        e.evaluator->run({.world = *mesh_.world,
                          .dataset = *e.dataset,
                          .loader = loader_options_,
                          .batch = engine_->geometry().micro_batch,
                          .likelihood = [this](const models::HostBatch& batch, double* nll, double* weight) {
                            engine_->evaluate(batch, nll, weight);
                          }});
    std::string values;
    for (const auto& [name, value] : result.values) {
      values += fmt::format(" {}={:.6g}", name, value);
      if (!std::isfinite(value))
        base::fail(base::Exit::nonfinite, "evaluator {}: {} is not finite at step {}", e.name, name, step_);
    }
    log::line("eval={} step={}{} {}={} s={:.1f}", e.name, step_, values, result.counted, result.examples,
              watch.seconds());
    metrics_->eval_row(e.name, step_, result.values);
    if (loader_options_.substitutes()) bad_samples_->agree();
  }
  progress_.charge(&Progress::Times::evaluation);
  base::set_phase("train");
}

checkpoint::State Trainer::snapshot() {
  checkpoint::State state = recipe_.state(deck_.resolved(), step_, engine_->state(), progress_.save());
  state.texts["origin"] = origin_;
  return state;
}

void Trainer::save() {
  base::set_phase("save");
  metrics_->flush();  // the checkpoint must never be ahead of its metrics
  checkpoint::Saved saved = checkpoint::save(*mesh_.world, directory_->checkpoints(), snapshot(), recipe_.checkpoint);
  log::line("checkpoint step={} file={} mib={:.2f} written_s={:.2f} verified=yes kept=\"last {}\"", step_, saved.file,
            double(saved.bytes) / 0x1p20, saved.seconds, recipe_.checkpoint.keep_last);
  progress_.charge(&Progress::Times::checkpoint);
  base::set_phase("train");
}

void Trainer::finish() {
  metrics_->flush();
  const Progress::Times& t = progress_.times;
  double total = t.total();
  log::line("finished step={} examples={} epochs={:.1f} attempts={}", step_, step_ * engine_->geometry().global_batch,
            double(step_ * engine_->geometry().global_batch) / double(data_->size()), progress_.attempts);
  log::line("time     {} of job time: training {:.1f} %  evaluation {:.1f} %  checkpoints {:.1f} %  start-up {:.1f} %",
            base::hms(total), 100 * t.training / total, 100 * t.evaluation / total, 100 * t.checkpoint / total,
            100 * t.setup / total);
  log::line("cost     {:.4f} core hours; mean {:.1f} examples/s while training",
            t.training * threads_ * mesh_.shape.ranks() / 3600, progress_.examples_per_s());
  if (progress_.bad_samples)
    log::line("data     {} examples were replaced for {} bad samples: {}/logs/bad_samples.txt",
              base::with_commas(progress_.bad_samples), base::with_commas(bad_samples_->known()), recipe_.run.dir);
  log::line("memory   peak of the activation arena {} bytes per rank (planned {})",
            base::with_commas(engine_->arena_peak()), base::with_commas(engine_->ledger().peak_of("activations")));
  if (log::warnings_so_far()) log::line("warnings {} in {}/logs/warnings.txt", log::warnings_so_far(), recipe_.run.dir);
  log::line("files    {}: checkpoints/  metrics.h5  metrics.jsonl  deck.resolved.toml  logs/", recipe_.run.dir);
  log::line("next     tools/plot_metrics {}", recipe_.run.dir);
  log::line("done     exit=0");
}

}  // namespace train
