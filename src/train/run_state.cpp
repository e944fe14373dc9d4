// SPDX-License-Identifier: Apache-2.0
#include "train/run_state.hpp"

#include "train/version.hpp"

namespace train {
namespace {

// Hands a text to the list in parts, NAME, NAME_2 and so on, because a checkpoint takes at most
// 60,000 bytes of a member. A text without bytes has no part.
void long_text(MemberList& list, const std::string& name, std::string& value) {
  constexpr size_t kPart = 50000;
  std::string all, rest = value;
  for (int i = 1;; ++i) {
    const std::string part_name = i == 1 ? name : fmt::format("{}_{}", name, i);
    size_t end = std::min(kPart, rest.size());
    // No character is split.
    while (end < rest.size() && end > 0 && static_cast<unsigned char>(rest[end]) >> 6 == 2) --end;
    std::string part = rest.substr(0, end);
    rest.erase(0, end);
    if (!list.has(part_name, !part.empty())) break;
    list.text(part_name, part);
    all += part;
  }
  value = std::move(all);
}

}  // namespace

RunState::RunState(const Recipe& recipe, const config::Deck& resolved)
    : global_batch(recipe.train.global_batch),
      resume(recipe.checkpoint.resume),
      restart_data(recipe.checkpoint.restart_data),
      deck(resolved.resolved()),
      name(recipe.run.name),
      notes(recipe.run.notes),
      version(kVersion) {
  watched = WatchedMeasures(recipe.evals);
  if (!recipe.checkpoint.best.empty())
    best = Tracker("best", parse_metric_choice(recipe.checkpoint.best, recipe.evaluations()));
  if (!recipe.checkpoint.passes.empty())
    threshold = Threshold(parse_threshold(recipe.checkpoint.passes, recipe.evaluations()));
  const EarlyStopOptions& early = recipe.early_stop;
  if (early.patience_evals > 0)
    patience = Tracker("early_stop", parse_metric_choice(early.metric, recipe.evaluations()),
                       early.min_change);
}

void RunState::members(MemberList& list) {
  list.number("setup_s", progress.times.setup);
  list.number("training_s", progress.times.training);
  list.number("evaluation_s", progress.times.evaluation);
  list.number("checkpoint_s", progress.times.checkpoint);
  list.number("redone_s", progress.times.redone);
  list.number("core_s", progress.core_s);
  progress.device_times.members(list);
  list.number("save_s", progress.save_s);
  list.number("attempts", progress.attempts);
  list.number("bad_samples", progress.bad_samples);
  list.number("skipped_steps", progress.skipped_steps);
  list.number("overflowed_steps", progress.overflowed_steps);
  list.number("skipped_examples", progress.skipped_examples);
  list.number("stream_offset", progress.stream_offset);
  list.number("seen_offset", progress.seen_offset);
  list.number("stream_before", progress.stream_before);
  best.members(list);
  patience.members(list);
  threshold.members(list);
  watched.members(list);
  epoch_means.members(list);
  losses.members(list);
  list.number("uptime_s", uptime_s);
  if (list.has("loss_scale", loss_scale.has_value())) {
    if (!loss_scale) loss_scale.emplace();
    list.number("loss_scale", loss_scale->scale);
    list.number("loss_scale_updates", loss_scale->updates);
  }
  list.number("global_batch", global_batch);
  list.text("origin", origin);
  list.text("data", data);
  long_text(list, "classes", classes);
  long_text(list, "tokenizers", tokenizers);
  list.text(checkpoint::kResumed, resume);
  int64_t restarts = restart_data;
  list.number("restart_data", restarts);
  restart_data = restarts != 0;
  list.text("deck", deck);
  list.text("run", name);
  list.text("notes", notes);
  list.text("version", version);
}

checkpoint::State RunState::to_checkpoint(std::vector<shard::TensorSlice> tensors) {
  checkpoint::State out;
  out.step = step;
  out.tensors = std::move(tensors);
  MemberWriter writer(out);
  members(writer);
  return out;
}

RunState RunState::read(const checkpoint::State& from) const {
  RunState out;
  out.step = from.step;
  out.best = best;
  out.patience = patience;
  out.threshold = threshold;
  out.watched = watched;
  out.threshold.forget();
  out.best.forget();
  out.patience.forget();
  MemberReader reader(from);
  out.members(reader);
  out.knows_position = reader.has("stream_offset", false) && reader.has("global_batch", false);
  return out;
}

void RunState::continue_from(const RunState& saved, double cores) {
  const double setup_s = progress.times.setup;
  DeviceTimes device_times = progress.device_times;
  device_times.continue_from(saved.progress.device_times);
  step = saved.step;
  progress = saved.progress;
  progress.device_times = device_times;
  ++progress.attempts;
  progress.add(&Progress::Times::setup, setup_s, cores);
  if (saved.global_batch > 0) {
    const int64_t moved = step * (saved.global_batch - global_batch);
    progress.stream_offset += moved;
    progress.seen_offset += moved;
  }
  if (begins_data_anew(saved)) {
    progress.stream_before += position();
    progress.stream_offset = -step * global_batch;
  }
  best = saved.best;
  patience = saved.patience;
  threshold = saved.threshold;
  watched = saved.watched;
  epoch_means = saved.epoch_means;
  losses = saved.losses;
  origin = saved.origin;
  if (classes.empty()) classes = saved.classes;  // they mean the same, as far as is known
}

int64_t RunState::go_back(const RunState& saved, int64_t bad_step) {
  const Progress before = progress;
  progress.times.setup = 0;  // included in `before`
  continue_from(saved, 0);
  progress.add(&Progress::Times::redone, before.times.total() - progress.times.total(), 0);
  progress.core_s = before.core_s;
  progress.device_times = before.device_times;
  progress.attempts = before.attempts + 1;
  CHECK(step <= bad_step, "went back from step {} to step {}", bad_step, step);
  const int64_t left_out = (bad_step - step) * global_batch;
  progress.skipped_examples = before.skipped_examples + left_out;
  progress.stream_offset = before.stream_offset + left_out;
  progress.stream_before = before.stream_before;
  return left_out;
}

}  // namespace train
