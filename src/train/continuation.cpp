// SPDX-License-Identifier: Apache-2.0
#include "train/continuation.hpp"

#include <algorithm>

#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/together.hpp"
#include "io/waiting.hpp"
#include "train/changes.hpp"
#include "train/console.hpp"
#include "train/init_images.hpp"
#include "train/input.hpp"

namespace train {
namespace log = base::log;

std::string Continuation::begin() {
  const bool resumed = resume(), branched = !resumed && branch();
  attempt_.enter("start");
  if (!resumed && !branched) initialise();
  saves_.continue_from(resumed ? attempt_.state.step : -1);
  attempt_.engine().publish();
  const std::string from = resumed                             ? "checkpoint"
                           : branched                          ? "branch"
                           : attempt_.recipe.init.from.empty() ? "random_init"
                                                               : "init";
  if (job::AttemptLog* log = attempt_.directory->attempts())
    known_lost_s_ =
        log->goes_on({from, restored_attempt_, attempt_.state.step, restored_uptime_s_});
  return from;
}

bool Continuation::resume() {
  auto before_weights = [this](const RunState& saved) {
    RunState next = attempt_.state;
    next.continue_from(saved, attempt_.pace.cores);
    position_(next.step, next.progress.stream_offset);
  };
  const std::optional<Saves::Found> found = saves_.restore(false, poll_, before_weights);
  if (!found) return false;
  comm::on_first(attempt_.world(), [&] {
    for (const KeyChange& c :
         check_changes(found->state.deck, attempt_.job.deck(), attempt_.start.allow_change))
      log::line("changed  {}: {} -> {}{}", c.key, c.was, c.is, c.free ? "" : " (--allow-change)");
    return std::string();
  });
  check_data(found->state);
  attempt_.job.check_lists(found->state.classes, found->state.tokenizers, found->from.file);
  log::line("restore  step={} file={} mib_per_rank={:.1f} s={:.2f}", found->from.step,
            found->from.file, double(found->from.bytes) / 0x1p20, found->from.seconds);
  continue_from(found->state, found->from.file);
  if (!attempt_.recipe.init.from.empty() || !attempt_.recipe.checkpoint.branch_from.empty())
    log::line(
        "init     this run goes on from its own checkpoint; init.from and checkpoint.branch_from "
        "applied only to its start");
  return true;
}

bool Continuation::branch() {
  const std::string& from = attempt_.recipe.checkpoint.branch_from;
  if (from.empty()) return false;
  checkpoint::State filled = saves_.target();
  const checkpoint::Restored restored = checkpoint::branch(attempt_.world(), from, filled, poll_);
  log::line("branch   step={} file={} mib_per_rank={:.1f} s={:.2f}", restored.step, restored.path,
            double(restored.bytes) / 0x1p20, restored.seconds);
  RunState& state = attempt_.state;
  RunState saved = state.read(filled);
  attempt_.job.check_lists(saved.classes, saved.tokenizers, restored.path);
  saved.restart_data = false;  // this flag was about the other run
  continue_from(saved, restored.path);
  if (state.step == attempt_.total)
    base::fail(
        base::Exit::config,
        "checkpoint.branch_from: {} is at step {}, the end of this deck; raise train.total_*",
        restored.path, state.step);
  state.progress.attempts = 1;  // in this directory
  restored_attempt_ = 0;
  restored_uptime_s_ = 0;
  for (Tracker* t : {&state.best, &state.patience}) t->forget();  // values of this run only
  state.threshold.forget();
  state.origin = fmt::format("branch of {} at step {}", restored.path, state.step);
  return true;
}

// Compares the number of samples in each training data set with the checkpoint's. The example at
// each position follows from these numbers. With other data the run would silently continue at
// positions that mean other examples.
void Continuation::check_data(const RunState& saved) const {
  const std::string& data = attempt_.state.data;
  if (saved.data.empty() || saved.data == data) return;
  const bool is_earlier_text = comm::on_first(attempt_.world(), [&] {
                                 return data_text(attempt_.job.data(), true);
                               }) == saved.data;
  if (is_earlier_text) return;
  const std::string text = fmt::format(
      "the checkpoint was trained on {}, the deck's data are {} (in brackets: a fingerprint of "
      "keys, sizes and places)",
      saved.data, data);
  if (attempt_.state.begins_data_anew(saved)) {
    log::line("data     {}; they begin anew (checkpoint.restart_data)", text);
    return;
  }
  const std::string key = attempt_.recipe.train.mixture.empty() ? "train.data" : "train.mixture";
  const std::vector<std::string>& allowed = attempt_.start.allow_change;
  if (std::find(allowed.begin(), allowed.end(), key) == allowed.end())
    throw base::Error(
        base::Exit::config,
        fmt::format(
            "{}: from here on, positions would mean other examples. Restore the data, or add "
            "--allow-change {}, or begin the data anew with --set checkpoint.restart_data=true",
            text, key),
        true);
  if (attempt_.leads()) log::warning("{} (--allow-change {})", text, key);
}

void Continuation::continue_from(const RunState& saved, const std::string& file) {
  restored_attempt_ = saved.progress.attempts;
  restored_uptime_s_ = saved.uptime_s;
  attempt_.state.continue_from(saved, attempt_.pace.cores);
  check_batches(saved);
  attempt_.find_total();
  if (saved.step > attempt_.total)
    base::fail(
        base::Exit::config,
        "the checkpoint is at step {}, beyond the end of this deck ({} steps); raise train.total_*",
        saved.step, attempt_.total);
  tell_position(saved, file);
  attempt_.settled = attempt_.state.step;
  restore_loss_scale(saved);
}

// Batches of shuffle "stratified" are cut at multiples of the batch size.
void Continuation::check_batches(const RunState& saved) const {
  const TrainOptions& train = attempt_.recipe.train;
  const int64_t offset = attempt_.state.progress.stream_offset;
  if (train.shuffle != data::Shuffle::stratified || offset % train.global_batch == 0) return;
  base::fail(base::Exit::config,
             "train.global_batch: the checkpoint has batches of {} examples, and its position is "
             "inside a batch of {}, where shuffle = \"stratified\" cannot begin: keep the batch "
             "size, or continue from a step that is a multiple of {} examples",
             saved.global_batch, train.global_batch, train.global_batch);
}

void Continuation::tell_position(const RunState& saved, const std::string& file) const {
  const RunState& state = attempt_.state;
  if (state.begins_data_anew(saved))
    log::line("data     begin anew after step {}, as checkpoint.restart_data says", state.step);
  else if (const std::string text = position_problem(saved, state, file);
           !text.empty() && attempt_.leads())
    log::warning("{}", text);
}

std::string position_problem(const RunState& saved, const RunState& now, const std::string& file) {
  if (saved.knows_position) return "";
  return fmt::format(
      "{} has no position of the data: training goes on at example {} of their order, as if all "
      "{} steps had had {} examples and none had been left out. --set checkpoint.restart_data=true "
      "begins the data anew",
      file, base::with_commas(now.position()), base::with_commas(now.step), now.global_batch);
}

void Continuation::restore_loss_scale(const RunState& saved) {
  if (!saved.loss_scale) return;
  const PrecisionOptions& precision = attempt_.recipe.precision;
  const double scale = saved.loss_scale->scale;
  if (attempt_.engine().scales_loss())
    // The deck may have raised the minimum since.
    attempt_.engine().set_scale_state(
        {std::max(scale, precision.loss_scale.min), saved.loss_scale->updates});
  else if (attempt_.leads())
    log::warning(
        "the checkpoint's loss scale, {:g}, is left out: precision.compute = \"{}\" has none",
        scale, name_of(precision.compute));
}

void Continuation::initialise() {
  position_(attempt_.state.step, attempt_.state.progress.stream_offset);
  step::Engine& engine = attempt_.engine();
  engine.initialise();
  const Recipe& recipe = attempt_.recipe;
  const std::string& from = recipe.init.from;
  if (from.empty()) return;
  const std::string before = parameter_table(engine, attempt_.job.mesh());
  if (attempt_.leads()) io::write_file_atomically(recipe.run.dir + kFirstParameters, before);
  const checkpoint::InitReport report = checkpoint::load_initial_weights(
      attempt_.world(), recipe.init, saves_.target(), engine.model().trunk_weights(), poll_);
  log::line("init     from={} {} s={:.2f}", from, report.summary, report.seconds);
  if (const std::string difference =
          attempt_.leads() ? image_difference(recipe, from, report.beside) : "";
      !difference.empty())
    log::warning("{}", difference);
  constexpr int kMaxLines = 20;  // on the console, which shows only tensors that were not loaded
  std::string table;
  int shown = 0;
  for (const std::string& text : report.lines) {
    table += text + "\n";
    if (!text.starts_with("loaded ") && ++shown <= kMaxLines) log::line("           {}", text);
  }
  if (shown > kMaxLines)
    log::line("           and {} more in {}/logs/init.txt", shown - kMaxLines, recipe.run.dir);
  if (attempt_.leads()) io::write_or_wait(recipe.run.dir + "/logs/init.txt", table);
  attempt_.state.origin = "parameters of " + from;
}

int64_t Continuation::go_back(const std::string& problem) {
  const std::optional<Saves::Found> found = saves_.restore(true, [] {});
  if (!found)
    throw base::Error(
        base::Exit::nonfinite,
        problem + ", and there is no checkpoint to go back to (guard.nonfinite = \"rewind\")",
        true);
  const int64_t left_out = attempt_.state.go_back(found->state, attempt_.settled);
  if (job::AttemptLog* log = attempt_.directory->attempts())
    attempt_.pace.set_spent(log->goes_back(
        {"checkpoint", found->state.progress.attempts, found->state.step, found->state.uptime_s},
        attempt_.state.progress.attempts, attempt_.pace.spent()));
  attempt_.find_total();
  attempt_.settled = attempt_.state.step;
  restore_loss_scale(found->state);
  attempt_.engine().publish();
  saves_.continue_from(attempt_.state.step);
  return left_out;
}

void Continuation::count_lost(const records::Metrics& metrics) {
  if (job::AttemptLog* log = attempt_.directory->attempts())
    log->continues(attempt_.state.progress.attempts);
  // The log of attempts shows all of the time. For older programs, rows of metrics show some of
  // it.
  const double lost = attempt_.world().max(
      std::max(known_lost_s_, metrics.lost_s(restored_attempt_, restored_uptime_s_)));
  if (lost <= 0) return;
  attempt_.state.progress.add(&Progress::Times::redone, lost, attempt_.pace.cores);
  log::line("lost     {} of earlier attempts, which came after the checkpoint, are done again",
            base::hms(lost));
}

}  // namespace train
