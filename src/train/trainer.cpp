#include "train/trainer.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/log.hpp"
#include "base/text.hpp"
#include "data/host_batch.hpp"
#include "device/range.hpp"
#include "io/files.hpp"
#include "train/failure.hpp"

namespace train {
namespace log = base::log;

Trainer::Trainer(comm::Session& session, const Recipe& recipe, config::Deck& deck,
                 std::unique_ptr<RunDirectory> directory, const Start& start)
    : recipe_(recipe),
      job_(recipe, deck, &session, start.mesh_selector, {}),
      started_(start),
      directory_(std::move(directory)) {
  start_s_ = start.begin_s;
  const double before_s = base::now_s() - start_s_;  // starting MPI, reading the deck
  job_.connect();
  stops_ = std::make_unique<Stops>(*job_.mesh().world, recipe.limits, recipe.run.dir, start.begin_s);
  open_data();
  progress_.cores = double(job_.threads()) * job_.mesh().shape.ranks();
  progress_.add(&Progress::Times::setup, before_s, progress_.cores);
  if (!recipe.checkpoint.best.empty())
    best_ = Tracker("best", parse_metric_choice(recipe.checkpoint.best, recipe.evals));
  const EarlyStopOptions& early = recipe.early_stop;
  if (early.patience_evals > 0)
    patience_ = Tracker("early_stop", parse_metric_choice(early.metric, recipe.evals), early.min_change);
}

Trainer::~Trainer() = default;

base::Exit Trainer::run() {
  start();
  StopReason stop = asked_to_stop();
  bool early = stopped_early();
  while (step_ < total_ && stop <= StopReason::save_file && !early) {
    base::set_step(++step_);
    job_.engine().submit(step_, [this](int64_t m, const models::Inputs& into) { feed(m, into); });
    bad_samples_of_[step_ % 2] = loader_options_.substitutes() ? bad_samples_->agree() : 0;
    // A GPU is at work on this step while the host takes in the one before, unless something is due that needs this one.
    const bool ahead = job_.engine().runs_ahead() && step_ < total_ && !stopped_early() && !evaluation_due();
    if (!settle(ahead ? 1 : 0)) continue;  // the run went back to a checkpoint
    complete_ = evaluate(Which::due);
    // The run has just found out that this was its last step: the evaluators of the end come now.
    if ((early = stopped_early()) && complete_) complete_ = evaluate(Which::missing);
    stop = asked_to_stop();
    if (save_due(stop) || early) {
      if (!settle(0)) continue;
      save();
    }
    watch_save(false);
    if (metrics_->flush_due()) flush_metrics();
  }
  // Asked to stop before the first step, or an evaluation that was made up for found the best value.
  if ((stop > StopReason::save_file && saved_step_ != step_) || save_best_) save();
  if (saver_->pending()) enter("save");
  watch_save(true);
  if (saved_step_ != step_)
    throw base::Error(base::Exit::checkpoint,
                      fmt::format("the last checkpoint could not be written: {}. Mend that, or choose another run.dir, and "
                                  "start the same command again",
                                  save_error_),
                      true);
  if (stop > StopReason::save_file && ((step_ < total_ && !early) || !complete_)) return leave(stop);
  finish();
  return base::Exit::finished;
}

// What reports and those who look at the run directory are told that this job is doing.
void Trainer::enter(const char* phase) {
  base::set_phase(phase);
  if (directory_) directory_->tell(fmt::format("{} step={}", phase, step_));
}

void Trainer::feed(int64_t, const models::Inputs& into) {
  data::BatchPtr batch = loader_->next();
  if (!first_batch_told_) describe_first_batch(*batch);
  if (sample_log_) sample_log_->write(step_, *batch);
  job_.engine().train_pass().prepare(data::host_batch(*batch, batch->positions[0]), job_.engine().draws(step_), into);
}

// Takes in what came of the steps so far, but for the last `ahead`. false: the run went back to a checkpoint.
bool Trainer::settle(int64_t ahead) {
  bool stands = true;
  while (stands && settled_ < step_ - ahead) {
    base::set_step(++settled_);
    stands = accept(job_.engine().report(settled_));
  }
  base::set_step(step_);
  return stands;
}

// Whether the step stands: settled_, which is the last one, or the one before it: what has gone into the queue since has changed
// neither files nor the run's numbers, and is forgotten when the run goes back. Every rank has the same sums, so all decide alike.
bool Trainer::accept(const StepReport& report) {
  bool sound = !report.finite || std::isfinite(report.update.parameters.global);
  if (report.finite && sound) {
    if (settled_ > last_bad_step_) in_a_row_ = 0;
    record(report, false);
    return true;
  }
  auto first_bad = [&](const std::vector<double>& norms) {
    for (size_t i = 0; i < norms.size(); ++i)
      if (!std::isfinite(norms[i])) return job_.engine().layout().parameters()[i].path;
    return std::string();
  };
  std::string problem = fmt::format("step {}: loss={}", settled_, report.loss());
  if (!sound)
    problem +=
        fmt::format(", but after the update {} is not finite", first_bad(report.update.parameters.per_parameter));
  else if (std::string tensor = first_bad(report.gradients.gradients.per_parameter); !tensor.empty())
    problem += fmt::format(" and the gradient of {} is not finite; nothing was updated", tensor);
  else
    problem += " is not finite; nothing was updated";
  if (!report.finite && report.gradients.loss_scale > 0 && std::isfinite(report.loss()))
    problem += fmt::format(" (loss scale {:g}{})", report.gradients.loss_scale,
                           report.overflow() ? "" : ", its minimum: precision.loss_scale.min");
  const char* way_out =
      "No checkpoint of it was written, the newest one is intact: lower optimizer.learning_rate, set "
      "optimizer.clip_norm or "
      "guard.nonfinite, and start again";
  const GuardOptions& guard = recipe_.guard;
  last_bad_step_ = std::max(last_bad_step_, settled_);
  auto give_up = [&](const std::string& why) {
    watch_save(true);  // of an earlier, sound step
    throw base::Error(base::Exit::nonfinite, fmt::format("{}{}. {}", problem, why, way_out), true);
  };
  if (report.overflow()) {  // fp16's own business, unless it never ends
    if (++in_a_row_ > guard.max_skips) give_up(fmt::format(", {} times in a row (guard.max_skips)", in_a_row_));
    ++progress_.overflowed_steps;
    log::line("step={} overflow in fp16: no update; loss_scale={:g} -> {:g}", settled_, report.gradients.loss_scale,
              report.gradients.next_loss_scale);
    record(report, true);
    return true;
  }
  if (guard.nonfinite == "stop") give_up("");
  if (++in_a_row_ > guard.max_skips) give_up(fmt::format(", {} times in a row (guard.max_skips)", in_a_row_));
  if (guard.nonfinite == "rewind") {
    rewind(problem);
    return false;
  }
  if (!sound) give_up(": too late to skip it (guard.nonfinite = \"rewind\" could go back)");
  ++progress_.skipped_steps;
  if (job_.mesh().rank() == 0) log::warning("{}: skipped", problem);
  record(report, true);
  return true;
}

// Back to the newest checkpoint; the examples since then are left out of the stream.
void Trainer::rewind(const std::string& problem) {
  enter("rewind");
  watch_save(true);
  flush_metrics();
  const int64_t bad_step = settled_;
  const Progress before = progress_;
  checkpoint::State state = target();
  checkpoint::CheckpointOptions options = recipe_.checkpoint;
  options.resume = "auto";
  // Files of a past that this run went back from lie there until its first commit.
  auto restored = checkpoint::restore(*job_.mesh().world, directory_->checkpoints(), state, options,
                                      [this](int64_t step) { return saver_->of_this_past(step); });
  if (!restored)
    throw base::Error(base::Exit::nonfinite,
                      problem + ", and there is no checkpoint to go back to (guard.nonfinite = \"rewind\")", true);
  progress_.times.setup = 0;  // it is in `before`
  take_over(state);
  progress_.add(&Progress::Times::redone, before.times.total() - progress_.times.total(), 0);
  progress_.core_s = before.core_s, progress_.attempts = before.attempts + 1;
  CHECK(step_ <= bad_step, "went back from step {} to step {}", bad_step, step_);
  const int64_t left_out = (bad_step - step_) * job_.engine().geometry().global_batch;
  progress_.skipped_examples = before.skipped_examples + left_out;
  progress_.stream_offset = before.stream_offset + left_out;
  job_.engine().publish();
  saver_->continue_from(step_);
  saved_step_ = step_;
  metrics_.reset();
  start_s_ = base::now_s();
  open_metrics(false);
  open_loader();
  progress_.charge(&Progress::Times::redone), step_s_ = 0;
  if (job_.mesh().rank() == 0)
    log::warning("{}: went back to step {}; {} examples are left out", problem, step_, base::with_commas(left_out));
  enter("train");
}

// 0 = never, in every unit (as a length, 0 epochs would be one step).
int64_t Trainer::period(const config::Duration& every, int64_t total) const {
  return every.value == 0 ? 0 : every.steps(recipe_.train.global_batch, job_.data().size(), total);
}

Outlook Trainer::outlook() const {
  // A stop waits for the save under way and then makes its own. Before the first save was measured: a disk of 100 MB/s.
  double save_s = progress_.save_s > 0 ? progress_.save_s : 0.5 + save_bytes_ / 100e6;
  // On GPUs another step may be under way already.
  const double step_s = std::max(progress_.mean_step_s(), progress_.last_step_s) * double(1 + step_ - settled_);
  return {step_s, save_s * (saver_->pending() ? 2 : 1), progress_.core_hours()};
}

StopReason Trainer::asked_to_stop() {
  watch_directory(false);
  return stops_->agree(outlook());
}

void Trainer::stop_while_starting() {
  StopReason stop = stops_->agree({});
  if (stop <= StopReason::save_file) return;
  stops_->done(stop);
  throw AskedToStop(stops_->exit(false), stops_->text(), stops_->too_short(false) ? stops_->way_out({}) : "");
}

bool Trainer::stopped_early() {
  const EarlyStopOptions& early = recipe_.early_stop;
  return early.patience_evals > 0 && patience_.waiting() >= early.patience_evals &&
         double(step_) >= early.not_before_fraction * double(total_);
}

bool Trainer::evaluation_due() const {
  const bool last = step_ == total_;
  return std::any_of(evaluations_.begin(), evaluations_.end(), [&](const Evaluation& e) {
    return config::is_time(step_, e.every, total_, e.options.at_end, false) || (e.options.at_end && last);
  });
}

// false: cut off, because the run must stop.
bool Trainer::evaluate(Which which) {
  bool complete = true, any = false, last = step_ == total_ || stopped_early();
  for (Evaluation& e : evaluations_) {
    bool now = which == Which::at_start
                   ? e.options.at_start
                   : config::is_time(step_, e.every, total_, e.options.at_end, false) || (e.options.at_end && last);
    if (!now) continue;
    if (which == Which::missing && job_.mesh().world->max(int64_t(metrics_->has_eval(e.name, step_)))) continue;
    if (!std::exchange(any, true)) enter("evaluate");
    device::Range range(("evaluate " + e.name).c_str());
    base::Stopwatch watch;
    eval::Result result =
        e.evaluator->run({.world = *job_.mesh().world,
                          .dataset = *e.dataset,
                          .loader = loader_options_,
                          .batch = job_.engine().geometry().micro_batch,
                          .pass = e.pass,
                          .forward = [&](const auto& prepare, const auto& run) { job_.engine().forward(*e.pass, prepare, run); },
                          .interrupted = [this] { return asked_to_stop() > StopReason::save_file; }});
    if (result.interrupted) {
      log::line("eval={} step={} interrupted: made again when the run goes on", e.name, step_);
      complete = false;
      break;
    }
    std::string values;
    for (const auto& [name, value] : result.values) {
      values += fmt::format(" {}={:.6g}", name, value);
      if (std::isfinite(value)) continue;
      watch_save(true);  // of an earlier, sound step
      throw base::Error(base::Exit::nonfinite,
                        fmt::format("evaluator {}: {} is not finite at step {} (guard.nonfinite is about training): its data, "
                                    "or weights that have grown too far",
                                    e.name, name, step_),
                        true);
    }
    bool best = which != Which::at_start && best_.update(e.name, result.values, step_);
    if (which != Which::at_start) patience_.update(e.name, result.values, step_);
    save_best_ |= best;
    log::line("eval={} step={}{} {}={} s={:.1f}{}", e.name, step_, values, result.counted, result.examples,
              watch.seconds(), best ? " best=yes" : "");
    result.values.emplace_back("eval_s", watch.seconds());
    metrics_->eval_row(e.name, step_, result.values);
    caught_up_ |= which == Which::missing;
    if (loader_options_.substitutes()) bad_samples_->agree();
  }
  if (any) progress_.charge(&Progress::Times::evaluation), enter("train");
  return complete;
}

// What a checkpoint fills.
checkpoint::State Trainer::target() {
  checkpoint::State state;
  state.tensors = job_.engine().state(), state.queue = &job_.engine().queue();
  return state;
}

checkpoint::State Trainer::snapshot() {
  std::map<std::string, double> numbers = progress_.save();
  best_.save(numbers), patience_.save(numbers);
  numbers["uptime_s"] = base::now_s() - start_s_;
  if (job_.engine().scales_loss()) {
    const optim::Engine::ScaleState scale = job_.engine().scale_state();
    numbers["loss_scale"] = scale.scale, numbers["loss_scale_updates"] = scale.updates;
  }
  numbers["global_batch"] = double(job_.engine().geometry().global_batch);
  checkpoint::State state = recipe_.state(job_.deck().resolved(), step_, job_.engine().state(), std::move(numbers));
  state.queue = &job_.engine().queue();
  state.texts["origin"] = origin_, state.texts["data"] = data_identity_;
  state.texts[checkpoint::kResumed] = recipe_.checkpoint.resume;
  return state;
}

void Trainer::charge_training() { step_s_ += progress_.charge(&Progress::Times::training); }

bool Trainer::save_due(StopReason stop) {
  return stop != StopReason::none || step_ == total_ || save_best_ ||
         config::is_time(step_, period(recipe_.checkpoint.every, total_), total_, true, false);
}

void Trainer::save() {
  enter("save");
  watch_save(true);  // of the one before
  flush_metrics();  // the checkpoint must never be ahead of its metrics
  stops_->save_begins();
  saver_->begin(snapshot(), best_.has_value() ? best_.step() : -1);
  saved_step_ = step_, save_best_ = false;
  progress_.charge(&Progress::Times::checkpoint);
  enter("train");
}

// Makes again what was removed of the run directory; `now`: looks in any case.
void Trainer::watch_directory(bool now) {
  RunDirectory::Watched watched;
  try {
    watched = directory_->watch(now);
  } catch (const base::Error&) {
    if (directory_->lost()) metrics_->let_go();
    throw;
  }
  if (watched.ours && sample_log_) sample_log_->keep();
  if (watched.made_again) write_deck(true);
}

void Trainer::flush_metrics() {
  metrics_->flush([this] { watch_directory(true); });
}

// Rank 0. `or_warn`: the run can do without.
void Trainer::write_deck(bool or_warn) {
  try {
    io::write_file_atomically(recipe_.run.dir + "/deck.resolved.toml", job_.deck().resolved());
  } catch (const io::Failure& e) {
    if (!or_warn) throw;
    log::warning("{}; the run goes on, its checkpoints hold the deck", e.what());
  }
}

// Moves the save under way on; `wait`: to its end.
void Trainer::watch_save(bool wait) {
  if (!saver_->pending()) return;
  // Rank 0 gives the file its name, which may stand in another job's directory by now.
  if (job_.mesh().rank() == 0) watch_directory(true);
  if (step_ > settled_) charge_training();  // a step that is under way on a GPU: the save may have no part of its time
  std::optional<checkpoint::Saved> saved = wait ? saver_->finish() : saver_->poll();
  progress_.charge(&Progress::Times::checkpoint);
  if (!saved) return;
  progress_.save_s = saved->seconds;
  if (!saved->error.empty()) {
    save_error_ = saved->error;
    if (saved_step_ == saved->step) saved_step_ = -1;
    if (recipe_.checkpoint.on_error == "stop") throw base::Error(saved->code, saved->error, true, saved->failed_rank);
    if (job_.mesh().rank() == 0)
      log::warning("{}; checkpoint.on_error = \"continue\": the next one is tried as planned{}", saved->error,
                   saved->best ? fmt::format("; the best weights so far, those of this step, are lost") : "");
    return;
  }
  stops_->save_committed();
  log::line(
      "checkpoint step={} file=checkpoints/{} mib={:.2f} waited_s={:.3f} written_s={:.2f} verified=yes kept=\"last "
      "{}\"{}",
      saved->step, saved->file, double(saved->bytes) / 0x1p20, saved->held_s, saved->seconds,
      recipe_.checkpoint.keep_last, saved->best ? " best=yes" : "");
}

}  // namespace train
