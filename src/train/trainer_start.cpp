// How a run comes to its first step.
#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "checkpoint/together.hpp"
#include "io/files.hpp"
#include "train/changes.hpp"
#include "train/input.hpp"
#include "train/mfu.hpp"
#include "train/trainer.hpp"
#include "train/unused.hpp"

namespace train {
namespace log = base::log;

namespace {

std::string order_text(const TrainOptions& train) {
  if (train.shuffle != "blocks") return train.shuffle;
  return fmt::format("blocks of {}, window {}", train.shuffle_block, train.shuffle_window);
}

// Seconds that a sum of 16 MiB takes, of the slowest rank.
double all_reduce_s(comm::Comm& comm, comm::Comm& world) {
  std::vector<float> probe(4 << 20);
  world.barrier();
  base::Stopwatch watch;
  comm.all_reduce(device::view(probe.data(), int64_t(probe.size()))).wait();
  return world.max(watch.seconds());
}

}  // namespace

void Trainer::open_data() {
  auto poll = [this] { stop_while_starting(); };
  enter("stage");
  job_.stage_data(poll);
  enter("open_data");
  std::set<std::string> names;
  for (const auto& [name, options] : recipe_.evals) names.insert(options.data);
  job_.open_data(names, poll);
  total_ = recipe_.total_steps(job_.data_size());
  for (const auto& [name, options] : recipe_.evals) {
    Evaluation e{name, options, eval::make_evaluator(options), &job_.evaluated(options.data), 0};
    e.evaluator->check(*e.dataset);
    e.every = period(options.every, total_);
    evaluations_.push_back(std::move(e));
  }
  for (const data::Mixture::Part& p : job_.data().parts())
    data_identity_ += fmt::format("{}{} {} samples ({:016x})", data_identity_.empty() ? "" : ", ", p.dataset->name(),
                                  base::with_commas(p.dataset->size()), p.dataset->fingerprint());
}

void Trainer::start() {
  if (!directory_) directory_ = open_run_directory(*job_.mesh().world, recipe_.run.dir, false);
  enter("start");
  saver_ = std::make_unique<checkpoint::Saver>(*job_.mesh().world, directory_->checkpoints(), recipe_.checkpoint);
  saver_->keep_free(int64_t(recipe_.limits.min_free_gb * 0x1p30));
  print_start();

  enter("restore");
  bool resumed = restore(), branched = !resumed && branch();
  enter("start");
  if (!resumed && !branched) initialise();
  saver_->continue_from(resumed ? step_ : -1);
  if (resumed) saved_step_ = step_;
  if (job_.mesh().rank() == 0) write_deck(resumed);
  job_.engine().publish();
  std::string table = parameter_table(job_.engine(), job_.mesh());
  if (job_.mesh().rank() == 0) io::write_file_atomically(recipe_.run.dir + "/logs/parameters.txt", table);
  open_metrics(directory_->after_kill());
  account_lost();
  int64_t staged = job_.mesh().world->max(saver_->stage(snapshot()));
  save_bytes_ = double(saver_->plan(snapshot()));
  double file_mib = save_bytes_ / 0x1p20;
  const double every_s = recipe_.checkpoint.every_s;
  log::line("disk     checkpoint {:.2f} MiB{}; keeps {}{} = {:.1f} MiB; {}; {} MiB free", file_mib,
            every_s > 0 ? fmt::format(" every {:g} s", every_s) : "",
            recipe_.checkpoint.keep_last, recipe_.checkpoint.best.empty() ? "" : " + best",
            file_mib * double(recipe_.checkpoint.keep_last + !recipe_.checkpoint.best.empty()),
            staged ? fmt::format("written beside training from a copy of {} MiB per rank", base::mebibytes(staged))
                   : "training waits for each save",
            base::mebibytes(io::free_bytes(recipe_.run.dir)));
  log::line("limits   {}", stops_->describe());
  std::string evals;
  for (const Evaluation& e : evaluations_)
    evals += fmt::format("  {} every {} ({})", e.name, e.every, e.dataset->size());
  if (!evals.empty()) log::line("evals  {}", evals);
  open_bad_samples();
  open_loader();
  log::line("start    step={} from={} setup_s={:.1f}  table: logs/parameters.txt", step_,
            resumed                     ? "checkpoint"
            : branched                  ? "branch"
            : recipe_.init.from.empty() ? "random_init"
                                        : "init",
            base::now_s() - start_s_);
  progress_.charge(&Progress::Times::setup);
  first_step_ = step_;
  stops_->started(recipe_.checkpoint.every_s);
  enter("train");
  complete_ = evaluate(step_ == 0 ? Which::at_start : Which::missing);
}

void Trainer::print_start() {
  log::line("{}", version_line());
  log::line("deck     {} sha256={} overrides={}  everything resolved: {}/deck.resolved.toml", started_.deck_path,
            job_.deck().digest().substr(0, 8), started_.overrides, recipe_.run.dir);
  log::line("run      dir={} seed={} determinism={}  lock taken by {}", recipe_.run.dir, recipe_.run.seed,
            recipe_.determinism.mesh() ? "mesh (same bits on every power-of-two mesh)" : "run (same mesh, same bits)",
            directory_->holder());
  print_mesh(job_.session(), job_.mesh(), recipe_, job_.device(), job_.threads());
  print_unused(recipe_, job_.device().kind);
  log::line("check    all-reduce 16 MiB: world {:.1f} ms, fsdp {:.1f} ms, replica {:.1f} ms",
            1e3 * all_reduce_s(*job_.mesh().world, *job_.mesh().world), 1e3 * all_reduce_s(*job_.mesh().fsdp, *job_.mesh().world),
            1e3 * all_reduce_s(*job_.mesh().replica, *job_.mesh().world));
  job_.build_engine(recipe_.run.dir + "/gemm_search.txt");
  for (Evaluation& e : evaluations_)
    e.pass = job_.engine().find_pass(eval::row_of(e.options).make_pass(job_.engine().model())->name());
  const Geometry& g = job_.engine().geometry();
  log::line("batch    global {} = {} ranks x micro_batch {} x accumulation {}{}", g.global_batch, job_.mesh().shape.ranks(),
            g.micro_batch, g.accumulation,
            recipe_.determinism.mesh() ? fmt::format("  slices {} ({} per pass)", g.total_slices, g.slices) : "");
  log::line("length   {} steps = {} examples = {:.1f} epochs of {} ({})", base::with_commas(total_),
            base::with_commas(total_ * g.global_batch), double(total_ * g.global_batch) / double(job_.data().size()),
            job_.data().name(), base::with_commas(job_.data().size()));
  log::line("data     {}  {}, {} samples  {}  order: {}", job_.data().name(), job_.data().summary(),
            base::with_commas(job_.data().size()), data::text_of(job_.data().spec()), order_text(recipe_.train));
  print_model(job_.engine(), recipe_);
  const Peak peak = find_peak(*job_.mesh().world, job_.engine().queue().kind(), job_.threads(), recipe_.precision.compute, recipe_.profile, 0.15);
  progress_.peak_flops = peak.flops;
  log::line("compute  {}; {:.4g} GFLOP per example forward+backward; {}", compute_text(recipe_.precision),
            double(job_.engine().model().train_flops()) / 1e9, peak.text);
  if (const std::string graphs = job_.engine().graphs_text(); !graphs.empty()) log::line("graphs   {}", graphs);
  print_memory(job_.engine());
}

bool Trainer::restore() {
  checkpoint::State state = target();
  std::optional<checkpoint::Restored> restored =
      checkpoint::restore(*job_.mesh().world, directory_->checkpoints(), state, recipe_.checkpoint, {},
                          [this] { stop_while_starting(); });
  if (!restored) return false;
  checkpoint::on_first(*job_.mesh().world, [&] {
    for (const KeyChange& c : check_changes(state.texts["deck"], job_.deck(), started_.allow_change))
      log::line("changed  {}: {} -> {}{}", c.key, c.was, c.is, c.free ? "" : " (--allow-change)");
    return std::string();
  });
  check_data(state);
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
  checkpoint::State state = target();
  checkpoint::Restored restored = checkpoint::branch(*job_.mesh().world, from, state, [this] { stop_while_starting(); });
  log::line("branch   step={} file={} mib_per_rank={:.1f} s={:.2f}", restored.step, restored.path,
            double(restored.bytes) / 0x1p20, restored.seconds);
  take_over(state);
  if (step_ == total_)
    base::fail(base::Exit::config,
               "checkpoint.branch_from: {} is at step {}, the end of this deck; raise train.total_*", restored.path,
               step_);
  progress_.attempts = 1;  // in this directory
  restored_attempt_ = 0, restored_uptime_s_ = 0;
  for (Tracker* t : {&best_, &patience_}) t->forget();  // values of this run only
  origin_ = fmt::format("branch of {} at step {}", restored.path, step_);
  return true;
}

// How many samples each data set of training has: which example stands at which position follows from it.
// Other data in the same files would go on in silence, at positions that mean other examples.
void Trainer::check_data(const checkpoint::State& state) const {
  auto was = state.texts.find("data");
  if (was == state.texts.end() || was->second == data_identity_) return;
  const std::string text = fmt::format("the checkpoint was trained on {}, the deck's data are {} (in brackets: keys, sizes and places)",
                                       was->second, data_identity_);
  const std::string key = recipe_.train.mixture.empty() ? "train.data" : "train.mixture";
  const auto& allowed = started_.allow_change;
  if (std::find(allowed.begin(), allowed.end(), key) == allowed.end())
    throw base::Error(base::Exit::config,
                      fmt::format("{}: positions would mean other examples from here on. Restore the data, "
                                  "or add --allow-change {}",
                                  text, key),
                      true);
  if (job_.mesh().rank() == 0) log::warning("{} (--allow-change {})", text, key);
}

void Trainer::take_over(const checkpoint::State& state) {
  step_ = settled_ = state.step;
  if (step_ > total_)
    base::fail(base::Exit::config,
               "the checkpoint is at step {}, beyond the end of this deck ({} steps); raise train.total_*", step_,
               total_);
  double setup_s = progress_.times.setup, cores = progress_.cores;  // of this attempt so far
  progress_.load(state.numbers);
  restored_attempt_ = progress_.attempts - 1;
  if (auto uptime = state.numbers.find("uptime_s"); uptime != state.numbers.end()) restored_uptime_s_ = uptime->second;
  progress_.add(&Progress::Times::setup, setup_s, cores);
  // The stream goes on where it was, also if the batch has another size now.
  if (auto batch = state.numbers.find("global_batch"); batch != state.numbers.end()) {
    int64_t moved = step_ * (int64_t(batch->second) - recipe_.train.global_batch);
    progress_.stream_offset += moved, progress_.seen_offset += moved;
  }
  if (auto scale = state.numbers.find("loss_scale"); scale != state.numbers.end()) {
    if (job_.engine().scales_loss())
      // Its minimum may have been raised since.
      job_.engine().set_scale_state({std::max(scale->second, recipe_.precision.loss_scale.min), state.numbers.at("loss_scale_updates")});
    else if (job_.mesh().rank() == 0)
      log::warning("the checkpoint's loss scale, {:g}, is left out: precision.compute = \"{}\" has none", scale->second,
                   recipe_.precision.compute);
  }
  best_.load(state.numbers), patience_.load(state.numbers);
  if (auto origin = state.texts.find("origin"); origin != state.texts.end()) origin_ = origin->second;
}

void Trainer::initialise() {
  job_.engine().initialise();
  const std::string& from = recipe_.init.from;
  if (from.empty()) return;
  checkpoint::InitReport report =
      checkpoint::load_initial_weights(*job_.mesh().world, recipe_.init, target(), job_.engine().model().patch_tables(),
                                       [this] { stop_while_starting(); });
  log::line("init     from={} {} s={:.2f}", from, report.summary, report.seconds);
  constexpr int kMostLines = 20;  // on the console; loaded tensors are the rule, so only the others
  std::string table;
  int shown = 0;
  for (const std::string& text : report.lines) {
    table += text + "\n";
    if (!text.starts_with("loaded ") && ++shown <= kMostLines) log::line("           {}", text);
  }
  if (shown > kMostLines) log::line("           and {} more in {}/logs/init.txt", shown - kMostLines, recipe_.run.dir);
  if (job_.mesh().rank() == 0) io::write_file_atomically(recipe_.run.dir + "/logs/init.txt", table);
  origin_ = "parameters of " + from;
}

void Trainer::open_metrics(bool after_kill) {
  std::vector<MetricInfo> measures;
  for (const models::Measure& m : job_.engine().measures()) measures.push_back({m.name, m.unit, m.doc});
  metrics_ = std::make_unique<Metrics>(recipe_.run.dir, step_, progress_.attempts, job_.mesh().rank() == 0, recipe_.log,
                                       after_kill, std::move(measures));
  progress_.attempts = job_.mesh().world->max(metrics_->attempt());
  metrics_->set_text("run", recipe_.run.name);
  metrics_->set_text("notes", recipe_.run.notes);
  metrics_->set_text("origin", origin_);
  metrics_->set_text("version", version());
}

// What the attempts before did after the checkpoint that was restored: told by the uptime in their last rows.
void Trainer::account_lost() {
  double lost = job_.mesh().world->max(metrics_->lost_s(restored_attempt_, restored_uptime_s_));
  if (lost <= 0) return;
  progress_.add(&Progress::Times::redone, lost, progress_.cores);
  log::line("lost     {} of earlier attempts, after the checkpoint: done again", base::hms(lost));
}

void Trainer::open_bad_samples() {
  std::map<std::string, int64_t> sizes;
  for (const data::Mixture::Part& p : job_.data().parts()) sizes[p.dataset->name()] = p.dataset->size();
  for (const Evaluation& e : evaluations_) sizes[e.dataset->name()] = e.dataset->size();
  bad_samples_ = std::make_unique<BadSamples>(*job_.mesh().world, directory_->logs() + "/bad_samples.txt",
                                              recipe_.data.loader.max_bad_sample_fraction, std::move(sizes));
  loader_options_ = recipe_.data.loader;
  loader_options_.log = bad_samples_->log();
}

void Trainer::open_loader() {
  loader_.reset();
  loader_ = std::make_unique<data::Loader>(
      job_.data(), loader_options_, training_plan(job_.engine().geometry(), job_.mesh(), step_, total_, progress_.stream_offset));
  if (recipe_.log.samples)
    sample_log_ = std::make_unique<SampleLog>(*job_.mesh().world, directory_->logs() + "/samples", step_, job_.data());
}

}  // namespace train
