// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "base/clock.hpp"
#include "base/log_components.hpp"
#include "base/memory_limit.hpp"
#include "base/text.hpp"
#include "device/gpu.hpp"
#include "io/waiting.hpp"
#include "job/failure.hpp"
#include "job/failure_report.hpp"
#include "train/console.hpp"
#include "train/input.hpp"
#include "train/outlook.hpp"
#include "train/provenance.hpp"
#include "train/start_lines.hpp"

namespace train {
namespace log = base::log;

namespace {

bool ends_run(job::StopReason reason) { return reason > job::StopReason::save_file; }

// Returns the number of devices of all ranks: compute threads, or GPUs, which ranks may share.
double devices_of(Job& job) {
  comm::Comm& world = *job.mesh().world;
  if (job.device().kind != device::Kind::cuda) return double(job.threads()) * world.size();
  const std::vector<std::string> all = world.gather_text(device::gpu_uuid());
  return double(std::set<std::string>(all.begin(), all.end()).size());
}

}  // namespace

Trainer::Trainer(comm::Session& session, const Recipe& recipe, config::Deck& deck,
                 std::unique_ptr<job::RunDirectory> directory, const Start& start)
    : job_(recipe, deck, &session, start.mesh_selector, {.allow_change = start.allow_change}),
      attempt_(job_, start, std::move(directory)),
      files_(attempt_),
      feed_(attempt_, files_),
      guard_(recipe.guard),
      slow_ranks_(attempt_),
      log_(attempt_, files_, feed_, slow_ranks_) {
  const double before_s = attempt_.uptime_s();  // starting MPI, reading the deck
  job_.connect();
  attempt_.pace.cores = double(job_.threads()) * job_.mesh().shape.ranks();
  const bool gpus = job_.device().kind == device::Kind::cuda;
  attempt_.state.progress.device_times.use(gpus ? device::gpu_name() : "cpu",
                                           devices_of(job_) / attempt_.pace.cores);
  attempt_.pace.add(attempt_.state.progress, &Progress::Times::setup, before_s);
  stops_ =
      std::make_unique<job::Stops>(attempt_.world(), recipe.limits, recipe.run.dir, start.begin_s);
  auto poll = [this] { stop_while_starting(); };
  attempt_.enter("stage");
  job_.stage_data(poll);
  attempt_.enter("open_data");
  job_.open_data(data_sets_of(recipe.evals), poll);
  attempt_.find_total();
  attempt_.state.data = data_text(job_.data());
  attempt_.state.classes = job_.classes();
  attempt_.state.tokenizers = job_.tokenizer_text();
  evaluations_ = std::make_unique<Evaluations>(attempt_, files_, feed_,
                                               [this] { return ends_run(stop_request()); });
}

Trainer::~Trainer() = default;

base::Exit Trainer::run() {
  try {
    const base::Exit code = go();
    tell_ending(code, code == base::Exit::finished ? "finished" : stops_->text());
    return code;
  } catch (const base::Error& e) {
    tell_failure(e);
    throw;
  } catch (const std::exception& e) {
    tell_failure(base::error_of(e));
    throw;
  }
}

void Trainer::tell_ending(base::Exit code, const std::string& reason) {
  attempt_.observers.tell(&Observer::ended, Observer::Ending{code, reason});
  attempt_.charge(&Progress::Times::setup);
  // A failure is recorded by the next start, because the report names its first cause.
  const bool good =
      code == base::Exit::finished || code == base::Exit::requeue || code == base::Exit::stopped;
  job::AttemptLog* log = attempt_.directory ? attempt_.directory->attempts() : nullptr;
  if (log && good)
    log->ends(code == base::Exit::finished ? "finished" : "stopped", int(code), reason,
              attempt_.state.step, attempt_.pace.spent());
}

// An observer that fails must not hide the error that ends the run.
void Trainer::tell_failure(const base::Error& error) {
  try {
    tell_ending(error.code(), error.what());
  } catch (const std::exception& e) {
    log::warning("at the end of the run: {}", e.what());
  }
}

base::Exit Trainer::go() {
  start();
  loop();
  finish_saves();
  if (ends_run(stop_) && ((attempt_.state.step < attempt_.total && !early_) || !complete_))
    return leave();
  files_.flush();
  // A stop file that came too late must not stop a longer run.
  stops_->done(job::StopReason::stop_file);
  log_.finish();
  return base::Exit::finished;
}

void Trainer::loop() {
  const int64_t& step = attempt_.state.step;
  stop_ = stop_request();
  early_ = evaluations_->stopped_early();
  while (step < attempt_.total && !ends_run(stop_) && !early_) {
    base::set_step(++attempt_.state.step);
    log::trace(log::Component::train, "step begins");
    attempt_.observers.tell(&Observer::step_begins, step);
    slow_ranks_.begin();
    job_.engine().submit(step, [this](int64_t) { return feed_.next(attempt_.state.step); });
    feed_.agree_on_step(step);
    // A GPU computes this step while the host processes the report of the step before, unless
    // something due needs the report of this step.
    const bool ahead = job_.engine().runs_ahead() && step < attempt_.total &&
                       !evaluations_->stopped_early() && !evaluations_->due(step);
    if (!settle(ahead ? 1 : 0)) continue;  // the run went back to a checkpoint
    evaluate(Which::due);
    // If this step turns out to be the last one, the evaluators with at_end run now.
    early_ = evaluations_->stopped_early();
    if (early_ && complete_) evaluate(Which::missing);
    slow_ranks_.begin();
    stop_ = stop_request();
    if (save_due()) {
      if (!settle(0)) continue;
      save();
    }
    saves_->watch(false);
    if (!saves_->pending()) evaluations_->saved_up_to(saves_->saved_step());
    if (files_.metrics().flush_due()) files_.flush();
    slow_ranks_.step_done();
    attempt_.observers.tell(&Observer::step_ends, step);
  }
}

bool Trainer::settle(int64_t ahead) {
  bool kept = true;
  while (kept && attempt_.settled < attempt_.state.step - ahead) {
    base::set_step(++attempt_.settled);
    kept = accept(job_.engine().report(attempt_.settled));
    log::trace(log::Component::train, "step done{}", kept ? "" : ": the run goes back");
  }
  base::set_step(attempt_.state.step);
  return kept;
}

// Decides whether the settled step is kept. At most one later step is queued; a rewind drops it,
// because it has written nothing yet. All ranks hold the same sums and decide alike.
bool Trainer::accept(const step::StepReport& report) {
  const Guard::Verdict verdict =
      guard_.judge(attempt_.settled, report, job_.engine().layout().parameters());
  Progress& progress = attempt_.state.progress;
  slow_ranks_.add_data(report.data_s);
  auto record = [&](bool skipped) {
    log_.record(report, skipped);
    attempt_.observers.tell(&Observer::settled, attempt_.settled, report, skipped);
  };
  switch (verdict.action) {
    case Guard::Action::keep:
      attempt_.state.watched.update(job_.engine().measures(), report.measures);
      record(false);
      return true;
    case Guard::Action::overflow:
      ++progress.overflowed_steps;
      log::line("{}", verdict.problem);
      break;
    case Guard::Action::drop:
      ++progress.skipped_steps;
      log::line("{}", verdict.problem);
      break;
    case Guard::Action::skip:
      ++progress.skipped_steps;
      if (attempt_.leads()) log::warning("{}: skipped", verdict.problem);
      break;
    case Guard::Action::rewind:
      rewind(verdict.problem);
      return false;
    case Guard::Action::give_up:
      give_up(verdict.problem);
  }
  record(true);
  return true;
}

void Trainer::give_up(const std::string& error) {
  saves_->watch(true);  // the pending save holds an earlier, sound step
  throw base::Error(base::Exit::nonfinite, error, true);
}

void Trainer::rewind(const std::string& problem) {
  attempt_.enter("rewind");
  slow_ranks_.drop();
  saves_->watch(true);
  files_.flush();
  const int64_t left_out = continuation_->go_back(problem);
  attempt_.begin_s = base::now_s();
  files_.open_metrics(false);
  feed_.open_loader();
  attempt_.charge(&Progress::Times::redone);
  attempt_.step_s = 0;
  if (attempt_.leads())
    log::warning("{}: went back to step {}; {} examples are left out", problem, attempt_.state.step,
                 base::with_commas(left_out));
  attempt_.observers.tell(&Observer::went_back, attempt_.state.step);
  attempt_.enter("train");
  // The examples that were left out may have been the last ones of the input.
  if (attempt_.state.step == attempt_.total) evaluate(Which::missing);
}

void Trainer::evaluate(Which which) {
  slow_ranks_.pause();
  const Evaluations::Outcome outcome = evaluations_->run(which);
  if (!outcome.problem.empty()) give_up(outcome.problem);
  complete_ = outcome.complete;
}

bool Trainer::save_due() const {
  return stop_ != job::StopReason::none || early_ || evaluations_->wants_save() || saves_->due();
}

void Trainer::save() {
  saves_->begin();
  evaluations_->saved();
}

// Finishes the pending save. Saves the last step if that is missing.
void Trainer::finish_saves() {
  // A run that was stopped before its first step has saved nothing yet. A missing evaluation that
  // was made up may have found the best value.
  const bool lacks = ends_run(stop_) && saves_->saved_step() != attempt_.state.step;
  if (lacks || evaluations_->wants_save()) save();
  if (saves_->pending()) attempt_.enter("save");
  saves_->watch(true);
  evaluations_->saved_up_to(saves_->saved_step());
  if (saves_->saved_step() == attempt_.state.step) return;
  throw base::Error(base::Exit::checkpoint,
                    fmt::format("the last checkpoint could not be written: {}. Repair the cause, "
                                "or choose another run.dir, and start the same command again",
                                saves_->error()),
                    true);
}

job::StopReason Trainer::stop_request() {
  files_.watch(false);
  if (const std::string why = attempt_.observers.wants_stop(); !why.empty())
    stops_->ask(job::StopReason::observer, why);
  return stops_->agree(outlook());
}

job::Outlook Trainer::outlook() const {
  // On GPUs another step may be queued already.
  const double step_s =
      steps_outlook_s(attempt_.pace.slowest_step_s(), attempt_.state.step - attempt_.settled);
  return {step_s, saves_->outlook_s(), attempt_.state.progress.core_hours()};
}

// Returns the outlook of an attempt that has measured no step. Its step time is estimated from
// FLOPs if the peak is known.
job::Outlook Trainer::first_outlook() const {
  job::Outlook o = outlook();
  step::Engine& engine = job_.engine();
  const double flops =
      double(engine.model().train_flops()) * double(engine.geometry().global_batch);
  if (attempt_.pace.peak_flops > 0) o.step_s = std::max(o.step_s, flops / attempt_.pace.peak_flops);
  return o;
}

void Trainer::stop_while_starting() {
  const job::StopReason stop = stops_->agree({});
  if (!ends_run(stop)) return;
  stops_->done(stop);
  throw job::AskedToStop(stops_->exit(false), stops_->text(),
                         stops_->too_short(false) ? stops_->way_out({}) : "");
}

void Trainer::start() {
  const Recipe& recipe = attempt_.recipe;
  if (!attempt_.directory)
    attempt_.directory = job::open_run_directory(attempt_.world(), recipe.run.dir, false);
  attempt_.enter("start");
  saves_ = std::make_unique<Saves>(attempt_, files_, *stops_);
  continuation_ = std::make_unique<Continuation>(
      attempt_, *saves_, [this] { stop_while_starting(); },
      [this](int64_t step, int64_t offset) { feed_.read_ahead(step, offset); });
  base::Stopwatch building;
  job_.build_engine(recipe.run.dir + "/gemm_search.txt");
  attempt_.init_s = building.seconds();
  const host::Peak peak = host::find_peak(attempt_.world(), job_.device().kind, job_.threads(),
                                          recipe.precision.compute, recipe.profile, 0.15);
  attempt_.pace.peak_flops = peak.flops;
  print_start(attempt_, time_exchanges(job_.mesh(), recipe.determinism.mesh()), peak);
  keep_provenance(attempt_);

  attempt_.enter("restore");
  feed_.open_bad_samples();
  const std::string from = continuation_->begin();
  if (attempt_.leads()) files_.write_deck();
  const std::string table = parameter_table(job_.engine(), job_.mesh());
  if (attempt_.leads()) {
    io::write_or_wait(recipe.run.dir + "/logs/parameters.txt", table);
    if (from == "random_init") io::write_or_wait(recipe.run.dir + kFirstParameters, table);
  }
  files_.open_metrics(attempt_.directory->after_kill());
  continuation_->count_lost(files_.metrics());
  saves_->plan();
  log::line("limits   {}", stops_->describe());
  if (const std::string evals = evaluations_->describe(); !evals.empty())
    log::line("evals  {}", evals);
  feed_.open_loader();
  slow_ranks_.open();
  log::line("start    step={} from={} setup_s={:.1f}  table: logs/parameters.txt",
            attempt_.state.step, from, attempt_.uptime_s());
  attempt_.charge(&Progress::Times::setup);
  attempt_.first_step = attempt_.state.step;
  stops_->started(recipe.checkpoint.every_s);
  attempt_.observers.open(attempt_);
  attempt_.observers.tell(&Observer::started);
  attempt_.enter("train");
  evaluate(attempt_.state.step == 0 ? Which::at_start : Which::missing);
}

// Ends an attempt that was stopped before the end of the run.
base::Exit Trainer::leave() {
  files_.flush();
  log_.warn_if_diverged();
  const bool gained = attempt_.state.step > attempt_.first_step || evaluations_->made_up();
  const base::Exit code = stops_->exit(gained);
  stops_->done(stop_);
  std::string way_out = stop_ == job::StopReason::budget ? "raise limits.core_hours to continue"
                                                         : "start the same command to continue";
  if (stops_->too_short(gained)) {
    way_out = stops_->way_out(first_outlook());
    if (attempt_.leads())
      job::write_report(int(code), fmt::format("{}; {}", stops_->text(), way_out));
  }
  log::line("stopped  step={} of {}: {}; {}", attempt_.state.step, attempt_.total, stops_->text(),
            way_out);
  log_.print_goodput();
  log::line("done     exit={}", int(code));
  return code;
}

}  // namespace train
