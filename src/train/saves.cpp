// SPDX-License-Identifier: Apache-2.0
#include "train/saves.hpp"

#include "base/log_components.hpp"
#include "base/text.hpp"
#include "io/waiting.hpp"
#include "job/striping.hpp"
#include "train/outlook.hpp"
#include "train/state_tree.hpp"

namespace train {
namespace log = base::log;

Saves::Saves(Attempt& attempt, RunFiles& files, job::Stops& stops)
    : attempt_(attempt),
      files_(files),
      stops_(stops),
      saver_(attempt.world(), attempt.directory->checkpoints(), attempt.recipe.checkpoint),
      every_(attempt.period(attempt.recipe.checkpoint.every)) {
  saver_.keep_free(int64_t(attempt.recipe.limits.min_free_gb * 0x1p30));
}

void Saves::plan() {
  const std::string tree = state_tree(attempt_.world(), snapshot());
  if (attempt_.leads()) io::write_or_wait(attempt_.recipe.run.dir + kStateFile, tree);
  const int64_t staged = attempt_.world().max(saver_.stage(snapshot()));
  bytes_ = double(saver_.plan(snapshot()));
  const double mib = bytes_ / 0x1p20;
  const checkpoint::CheckpointOptions& options = attempt_.recipe.checkpoint;
  if (attempt_.leads() && options.io.stripes != 0)
    job::stripe_folder(attempt_.directory->checkpoints(), options.io.stripes);
  const bool best = !options.best.empty();
  const int64_t room = io::free_bytes(attempt_.recipe.run.dir);
  log::line("disk     checkpoint {:.2f} MiB{}; keeps {}{} = {:.1f} MiB; {}; {} MiB free", mib,
            options.every_s > 0 ? fmt::format(" every {:g} s", options.every_s) : "",
            options.keep_last, best ? " + best" : "", mib * double(options.keep_last + best),
            staged
                ? fmt::format("written beside training from a copy of {} MiB per rank{}",
                              base::mebibytes(staged),
                              options.io.mpio ? ", which MPI-IO writes while training waits" : "")
                : "training waits for each save",
            base::mebibytes(room));
  const double needed = bytes_ + attempt_.recipe.limits.min_free_gb * 0x1p30;
  if (attempt_.leads() && double(room) < needed)
    log::warning(
        "disk: not even one checkpoint fits: it takes {:.2f} MiB{}, and {} has {} MiB free. Make "
        "room there before the first save, or choose another run.dir",
        mib,
        attempt_.recipe.limits.min_free_gb > 0
            ? fmt::format(" beside limits.min_free_gb = {:g}", attempt_.recipe.limits.min_free_gb)
            : "",
        attempt_.recipe.run.dir, base::mebibytes(room));
}

void Saves::continue_from(int64_t step) {
  saver_.continue_from(step);
  if (step >= 0) saved_step_ = step;
}

bool Saves::due() const {
  const int64_t step = attempt_.state.step;
  return step == attempt_.total || (step == 1 && attempt_.recipe.checkpoint.first_step) ||
         config::is_time(step, every_, attempt_.total, true, false);
}

void Saves::begin() {
  attempt_.enter("save");
  watch(true);     // finishes the previous save
  files_.flush();  // the metrics must never lack rows up to the checkpoint's step
  stops_.save_begins();
  attempt_.charge(&Progress::Times::checkpoint);  // what the file counts ends with its uptime
  if (job::AttemptLog* log = attempt_.directory->attempts())
    log->saves(attempt_.state.progress.attempts, attempt_.state.step, attempt_.pace.spent());
  const Tracker& best = attempt_.state.best;
  saver_.begin(snapshot(), best.has_value() ? best.step() : -1);
  saved_step_ = attempt_.state.step;
  attempt_.charge(&Progress::Times::checkpoint);
  attempt_.enter("train");
}

void Saves::watch(bool wait) {
  if (!saver_.pending()) return;
  // Rank 0 renames the file, whose directory may belong to another job by now.
  if (attempt_.leads()) files_.watch(true);
  // A step may still run on the GPU. Its time must not be charged to the save.
  if (attempt_.state.step > attempt_.settled) attempt_.charge_training();
  std::optional<checkpoint::Saved> saved = wait ? saver_.finish() : saver_.poll();
  attempt_.charge(&Progress::Times::checkpoint);
  if (!saved) return;
  attempt_.state.progress.save_s = saved->seconds;
  const checkpoint::CheckpointOptions& options = attempt_.recipe.checkpoint;
  if (!saved->error.empty()) {
    error_ = saved->error;
    if (saved_step_ == saved->step) saved_step_ = -1;
    if (options.stops_on_error)
      throw base::Error(saved->code, saved->error, true, saved->failed_rank);
    if (attempt_.leads())
      log::warning("{}; checkpoint.on_error = \"continue\": the next save is tried as planned{}",
                   saved->error,
                   saved->best ? "; the best weights so far, those of this step, are lost" : "");
    return;
  }
  stops_.save_committed();
  attempt_.observers.tell(&Observer::saved, *saved);
  log::info(log::Component::checkpoint,
            "checkpoint step={} file=checkpoints/{} mib={:.2f} waited_s={:.3f} written_s={:.2f} "
            "verified=yes kept=\"last {}\"{}",
            saved->step, saved->file, double(saved->bytes) / 0x1p20, saved->held_s, saved->seconds,
            options.keep_last, saved->best ? " best=yes" : "");
}

double Saves::outlook_s() const {
  return saves_outlook_s(attempt_.state.progress.save_s, bytes_, saver_.pending());
}

checkpoint::State Saves::target() const {
  checkpoint::State state;
  state.tensors = attempt_.engine().state();
  state.queue = &attempt_.engine().queue();
  state.io = attempt_.recipe.checkpoint.io;
  return state;
}

checkpoint::State Saves::snapshot() const {
  RunState& state = attempt_.state;
  step::Engine& engine = attempt_.engine();
  state.uptime_s = attempt_.uptime_s();
  if (engine.scales_loss()) state.loss_scale = engine.scale_state();
  checkpoint::State out = state.to_checkpoint(engine.state());
  out.queue = &engine.queue();
  out.io = attempt_.recipe.checkpoint.io;
  return out;
}

std::optional<Saves::Found> Saves::restore(
    bool going_back, const comm::Poll& poll,
    const std::function<void(const RunState&)>& before_weights) {
  checkpoint::State state = target();
  if (before_weights) state.before_tensors = [&] { before_weights(attempt_.state.read(state)); };
  checkpoint::CheckpointOptions options = attempt_.recipe.checkpoint;
  checkpoint::Belongs belongs;
  if (going_back) {
    options.resume = "auto";
    // Until the first commit, the directory still holds files of steps that this run went back
    // from.
    belongs = [this](int64_t step) { return saver_.of_this_past(step); };
  }
  std::optional<checkpoint::Restored> restored = checkpoint::restore(
      attempt_.world(), attempt_.directory->checkpoints(), state, options, belongs, poll);
  if (!restored) return {};
  return Found{attempt_.state.read(state), *restored};
}

}  // namespace train
