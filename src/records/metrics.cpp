// SPDX-License-Identifier: Apache-2.0
#include "records/metrics.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "io/h5.hpp"
#include "records/abandoned_rows.hpp"
#include "records/long_file.hpp"
#include "records/tensor_rows.hpp"

namespace records {
namespace {

constexpr double kShare = 1.0 / 200;  // largest share of the run's time for writing metrics.h5

}  // namespace

// ---------------------------------------------------------------- the table of metrics

namespace {

std::vector<MetricInfo> memory_metrics() {
  return {
      {"host_mib", "MiB", "peak resident memory of rank 0's process"},
      {"host_anon_mib", "MiB",
       "resident memory of rank 0's process without a file: heap, buffers, half a second ago at "
       "the most"},
      {"host_file_mib", "MiB",
       "resident pages of files that rank 0 maps, which the system can drop and read again"},
      {"host_shared_mib", "MiB", "resident memory that rank 0 shares with other processes"},
      {"memory_mib", "MiB", "[C]: buffers of category C of rank 0, at log.memory_steps"},
      {"host_available_mib", "MiB", "memory of rank 0's node that programs can still take"},
      {"device_mib", "MiB", "memory in use on rank 0's GPU, by all programs"},
      {"device_peak_mib", "MiB", "peak of rank 0's buffers on its GPU, all kinds added up"},
  };
}

std::vector<MetricInfo> step_metrics() {
  return {
      {"loss", "1",
       "the quantity that training minimises, for this step's batch before the update"},
      {"l2_grads", "1",
       "norm of the gradients before clipping, frozen parameters left out; [G]: of parameters that "
       "match G"},
      {"l2_params", "1", "norm of the parameters after the update; [G]: of those that match G"},
      {"l2_updates", "1", "norm of the update as it was added; [G]: of parameters that match G"},
      {"clip", "1", "factor that clipping put on the gradients; 1 = none"},
      {"schedule", "1",
       "multiplier of the update, without learning_rate, evaluated at step - 1; further schedules "
       "are numbered"},
      {"ms", "ms", "wall time of the step"},
      {"data_ms", "ms",
       "part of ms at rank 0 spent waiting for data (on a GPU: for the next step's data, while the "
       "GPU may still compute)"},
      {"comm_ms", "ms",
       "part of ms: the host waits for exchanges that computing did not hide, and for other ranks; "
       "NCCL's, which run on the GPU, are in compute_ms"},
      {"compute_ms", "ms", "part of ms: the rest"},
      {"data_mean_ms", "ms",
       "wait for data per step: mean over all ranks in the newest window of steps, in the first "
       "row after the window; absent with one rank"},
      {"data_max_ms", "ms", "the same, of the rank that waited longest"},
      {"slow_rank", "1",
       "rank that made the others wait, in a window since the previous row; -1: no rank, or all "
       "ranks alike"},
      {"slow_ms", "ms", "what a step of that window would save without it"},
      {"slow_phase", "1",
       "what made it slow: 1 input, 2 computing, 3 exchange, 4 saving, 5 machine; 0: nothing"},
      {"slow_chronic", "1", "1: it was slow in most of the newest windows; 0: once"},
      {"examples_s", "1/s", "examples per second of this step, all ranks"},
      {"examples_s_core", "1/s",
       "examples_s over the devices of all ranks: compute threads (CPUs) or GPUs"},
      {"mfu", "1",
       "model FLOPs of the step over its time and the dense peak of all devices (GPUs: data sheet "
       "or profile.peak_tflops; CPUs: measured); NaN: no peak is known"},
      {"hfu", "1",
       "like mfu, but from the products that ran: recomputed products count twice, skipped rows do "
       "not count"},
      {"examples_seen", "examples", "since step 0; [D]: of data set D of a mixture"},
      {"epoch", "epochs",
       "examples seen over the size of the training set (of a mixture: of all its data sets "
       "together); [D]: of data set D over its size"},
      {"train_phase", "1", "number of this step's epoch, from 0 (train.test_every)"},
      {"phase", "1", "number of this step's phase, from 0; tests count, too (train.test_every)"},
      {"epoch_mean", "1",
       "[M]: mean of measure M over the examples since the epoch began, in the row of the step "
       "that "
       "ends it, and of the last step (log.epoch_means)"},
      {"bad_samples", "examples",
       "of this step's batch, replaced because they cannot be used (loader.on_bad_sample)"},
      {"progress", "1", "step over total steps"},
      {"goodput", "1",
       "time of the training steps that were kept over the job time of all attempts, without the "
       "time between attempts"},
      {"core_hours", "h",
       "job time times compute threads of all ranks, all attempts; [D]: job time on devices of "
       "kind "
       "D times their number: compute threads (CPUs) or GPUs"},
      {"skipped", "1",
       "1: something was not finite, so there was no update (guard.nonfinite = skip, or fp16's "
       "loss scale), or the gradient was too large (optimizer.drop_norm)"},
      {"skipped_updates", "1", "steps without an update since step 0"},
      {"loss_scale", "1",
       "fp16: what this step's gradients were multiplied by while they were formed"},
      {"attention_cudnn", "1", "calls of attention in this step by cuDNN (GPUs, rank 0)"},
      {"attention_products", "1", "those by products of cuBLASLt (f32 and tf32)"},
      {"attention_own", "1", "those by this program's kernels, which are slower"},
      {"fallbacks", "1",
       "calls in this step that took a slower path because a library refused the request; the log "
       "names each shape once"},
      {"first_step_s", "s", "wall time of this attempt's first step, in its first row"},
      {"uptime_s", "s", "since this attempt began"},
  };
}

}  // namespace

const std::vector<MetricInfo>& train_metrics() {
  static const std::vector<MetricInfo> list = [] {
    std::vector<MetricInfo> all = step_metrics();
    for (MetricInfo& info : memory_metrics()) all.push_back(std::move(info));
    return all;
  }();
  return list;
}

const std::vector<MetricInfo>& eval_metrics() {
  static const std::vector<MetricInfo> list = {
      {"attempt", "1", "number of this start of the run, from 1"},
      {"time", "s", "since 1970-01-01 UTC"},
      {"killed", "1", "1: the attempt before this one was killed: it ended without a report"},
      {"exit_before", "1", "exit code of the program's previous start; -1: it left none"},
      {"idle_s", "s",
       "time between the last sign of life of the previous start and the beginning of this one"},
      {"redone_s", "s",
       "time that earlier starts spent after the checkpoint from which this attempt continues"},
      {"num_params", "elements", "parameters of the model, frozen ones included"},
      {"init_s", "s", "this attempt's time to build the model, its stores and its plan of memory"},
      {"host_total_mib", "MiB", "memory of rank 0's node"},
      {"device_total_mib", "MiB", "memory of rank 0's GPU"},
      {"eval_s", "s", "wall time of the evaluation"},
      {"phase", "1", "number of this test among all phases, from 0 (train.test_every)"},
  };
  return list;
}

const MetricInfo* find_metric(const std::vector<MetricInfo>& list, const std::string& name) {
  for (const MetricInfo& m : list) {
    if (!name.starts_with(m.name)) continue;
    std::string_view rest = std::string_view(name).substr(m.name.size());
    if (rest.find_first_not_of("0123456789") == rest.npos ||
        (rest.front() == '[' && rest.back() == ']'))
      return &m;
  }
  return nullptr;
}

// ---------------------------------------------------------------- files

Metrics::Metrics(const std::string& directory, int64_t restored_step, int64_t attempt, bool writes,
                 const LogOptions& options, bool killed, DeclaredMetrics declared, const Row& about)
    : directory_(directory),
      declared_(std::move(declared)),
      writes_(writes),
      flush_s_(options.flush_s),
      attempt_(attempt),
      jsonl_(directory_ + "/metrics.jsonl") {
  if (!writes_) return;
  load(restored_step);
  io::File file(jsonl_.path(), io::File::Mode::append);
  const int64_t bytes = file.size();
  jsonl_.take(std::move(file), bytes);
  double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  Row start = {{"attempt", double(attempt_)},
               {"time", std::round(now * 1e3) / 1e3},
               {"killed", double(killed)}};
  start.insert(start.end(), about.begin(), about.end());
  append(line_of({kStartRows, restored_step, start}));
  groups_[kStartRows].add(restored_step, start, false);
  if (stored_.empty()) {
    flush();
    return;
  }
  // The first flush of the loop writes metrics.h5 again: that takes seconds for a long run.
  jsonl_.sync();
  flushed_s_ = base::now_s();
  h5_.file = io::id_of(directory_ + "/metrics.h5");
}

Metrics::~Metrics() {
  if (!writes_ || !jsonl_.file().is_open()) return;
  try {
    mend_jsonl();
    jsonl_.sync();
    if (h5_.stale || !h5_is_ours()) write_h5();
  } catch (const std::exception& e) {
    base::log::warning("metrics: {}", e.what());
  }
}

void Metrics::note_uptime(const MetricRow& row, int64_t attempt) {
  if (row.group != kTrainRows) return;
  for (const auto& [name, value] : row.values)
    if (name == "uptime_s") last_uptime_s_[attempt] = std::max(last_uptime_s_[attempt], value);
}

// Keeps the rows of earlier attempts up to the restored step. Later rows move to the abandoned
// file.
void Metrics::load(int64_t restored_step) {
  Abandoned abandoned(directory_ + "/metrics.abandoned.jsonl");
  abandoned.for_rows([this](const MetricRow& row, int64_t attempt) { note_uptime(row, attempt); });
  if (restored_step > 0)
    if (std::optional<LongHistory> history = read_long_history(directory_, restored_step)) {
      load_long(std::move(*history), restored_step, abandoned);
      return;
    }
  const std::string& path = jsonl_.path();
  const MetricHistory history = read_metric_history(directory_);
  std::string stays;
  for (const MetricHistory::Entry& e : history.entries) {
    const bool start = e.row.group == kStartRows;
    note_uptime(e.row, e.attempt);
    // A run that starts over evaluates at step 0 again.
    if (!start && (e.left || e.row.step > restored_step || restored_step == 0)) {
      abandoned.add_row(e.row, e.attempt, e.line);
      continue;
    }
    stays += e.line;
    groups_[e.row.group].add(e.row.step, e.row.values, !start);
  }
  for (const MetricHistory::NoRow& n : history.no_rows) abandoned.add(n.line, n.line);
  attempt_ = std::max(attempt_, history.last_attempt + 1);
  abandoned.write();
  if (stays != history.text || !io::exists(path)) io::write_file_atomically(path, stays);
  tell_of_load(restored_step, abandoned.moved(), history.no_rows);
  if (const std::string rows = only_in_h5(history); !rows.empty())
    base::log::warning("{} lacked rows that metrics.h5 has; they were added: {}", path, rows);
  warn_of_gap(restored_step);
}

void Metrics::tell_of_load(int64_t restored_step, int64_t moved,
                           const std::vector<MetricHistory::NoRow>& no_rows) const {
  if (moved)
    base::log::line(
        "metrics  {} rows past step {} moved to metrics.abandoned.jsonl; this is attempt {}", moved,
        restored_step, attempt_);
  if (!no_rows.empty()) warn_of_no_rows(jsonl_.path(), no_rows);
}

void Metrics::warn_of_gap(int64_t restored_step) const {
  int64_t last_train = std::max<int64_t>(0, stored_.last_step(kTrainRows));
  if (const auto train = groups_.find(kTrainRows); train != groups_.end())
    if (!train->second.steps.empty()) last_train = train->second.steps.back();
  if (last_train < restored_step && restored_step > 0)
    base::log::warning(
        "{}: no training row of steps {} to {}, and none in metrics.h5: the checkpoint is newer "
        "than the metrics, rows were not due, or both files were removed",
        jsonl_.path(), last_train + 1, restored_step);
}

// Does what load() does, but leaves the lines unread whose rows metrics.h5 has.
void Metrics::load_long(LongHistory history, int64_t restored_step, Abandoned& abandoned) {
  stored_ = std::move(history.stored);
  groups_ = std::move(history.groups);
  for (const auto& [attempt, s] : history.uptimes)
    last_uptime_s_[attempt] = std::max(last_uptime_s_[attempt], s);
  const MetricStarts starts(groups_[kStartRows]);
  int64_t attempt = starts.all().empty() ? 1 : starts.all().back().number, number = history.lines;
  KeptLines kept{history.begin, "", false};
  std::vector<MetricHistory::NoRow> no_rows;
  const io::File file(jsonl_.path(), io::File::Mode::read);
  for_lines(file, history.begin, [&](const std::string& line, int64_t place, bool whole) {
    ++number;
    const std::optional<MetricRow> row = metric_row_of(line);
    if (!row) {
      no_rows.push_back({line + "\n", number, !whole});
      abandoned.add(line + "\n", line + "\n");
      kept.changed = true;
      return;
    }
    const bool start = row->group == kStartRows;
    if (start) attempt = std::max(attempt, attempt_of_start(row->values));
    note_uptime(*row, attempt);
    if (!start && row->step > restored_step) {
      abandoned.add_row(*row, attempt, line + "\n");
      kept.changed = true;
      return;
    }
    kept.add(line, place, whole);
    put(row->group, row->step, row->values, !start);
  });
  attempt_ = std::max(attempt_, attempt + 1);
  abandoned.write();
  kept.replace_in(jsonl_.path());
  tell_of_load(restored_step, abandoned.moved(), no_rows);
  warn_of_gap(restored_step);
}

// Adds a row to the series in memory. If it is not after all stored rows of its group, the whole
// group comes into memory.
void Metrics::put(const std::string& group, int64_t step, const Row& values, bool unique) {
  if (stored_.rows(group) > 0 && step <= stored_.last_step(group)) {
    const MetricSeries newer = std::move(groups_[group]);
    MetricSeries& all = groups_[group] = stored_.take(group);
    for (size_t i = 0; i < newer.steps.size(); ++i) all.add(newer.steps[i], newer.values(i), true);
  }
  groups_[group].add(step, values, unique);
}

void Metrics::append(const std::string& line) {
  h5_.stale = true;
  jsonl_.append(line);
}

void Metrics::add(const std::string& group, int64_t step, const Row& values) {
  append(line_of({group, step, values}));
  put(group, step, values, true);
  if (listener_) listener_(group, step, values);
}

void Metrics::train_row(int64_t step, const Row& values) {
  if (!writes_) return;
  for (const auto& [name, value] : values)
    CHECK(find_declared(kTrainRows, name),
          "metric {} is neither a measure of the model nor in train_metrics()", name);
  add(kTrainRows, step, values);
}

const MetricInfo* Metrics::find_declared(const std::string& group, const std::string& name) const {
  if (auto list = declared_.find(group); list != declared_.end())
    for (const MetricInfo& m : list->second)
      if (m.name == name) return &m;
  return find_metric(group == kTrainRows ? train_metrics() : eval_metrics(), name);
}

void Metrics::eval_row(const std::string& evaluator, int64_t step, const Row& values) {
  if (!writes_) return;
  for (const auto& [name, value] : values)
    CHECK(find_declared(eval_rows(evaluator), name),
          "metric {} is neither the evaluator's nor in eval_metrics()", name);
  add(eval_rows(evaluator), step, values);
}

void Metrics::tensor_row(const std::string& group, int64_t step, const Row& values) {
  if (writes_) add(group, step, values);
}

void Metrics::set_text(const std::string& name, const std::string& text) {
  h5_.texts[name] = text;
  h5_.stale = true;
}

void Metrics::set_facts(int64_t attempt, const std::map<std::string, std::string>& facts) {
  h5_.facts[attempt] = facts;
  h5_.stale = true;
}

double Metrics::lost_s(int64_t attempt, double uptime_s) const {
  double lost = 0;
  for (const auto& [number, uptime] : last_uptime_s_) {
    if (number == attempt) lost += std::max(0.0, uptime - uptime_s);
    if (number > attempt) lost += uptime;
  }
  return lost;
}

bool Metrics::has_eval(const std::string& evaluator, int64_t step) const {
  if (stored_.has(eval_rows(evaluator), step)) return true;
  auto series = groups_.find(eval_rows(evaluator));
  return series != groups_.end() &&
         std::binary_search(series->second.steps.begin(), series->second.steps.end(), step);
}

void Metrics::flush(const std::function<void()>& look) {
  look();
  if (!writes_) return;
  flushed_s_ = base::now_s();
  try {
    mend_jsonl();
  } catch (const io::Failure& e) {
    base::log::warning("metrics: {}; the newest rows may be lost if this machine dies", e.what());
  }
  jsonl_.sync();
  const bool ours = h5_is_ours();
  if (!ours) look();  // the sync may have taken long
  const bool cheap = h5_.written_s == 0 || flushed_s_ - h5_.written_s >= h5_.cost_s / kShare;
  if (ours && (!h5_.stale || !cheap)) return;
  try {
    write_h5();
    if (!ours)
      base::log::warning(
          "{}/metrics.h5 was removed or replaced while this job writes it: made again", directory_);
  } catch (const base::Error& e) {  // a later flush makes it again from metrics.jsonl
    base::log::warning("metrics.h5 stays as it was: {}", e.what());
  }
  h5_.written_s = base::now_s();
  h5_.cost_s = h5_.written_s - flushed_s_;
}

bool Metrics::h5_is_ours() const {
  try {
    return !h5_.file || io::id_of(directory_ + "/metrics.h5") == h5_.file;
  } catch (const io::Failure&) {
    return true;  // unknown for now: the next write replaces it anyway
  }
}

// Makes metrics.jsonl again if another file took its place or its length has changed.
void Metrics::mend_jsonl() {
  const std::string& path = jsonl_.path();
  const bool in_place = jsonl_.file().in_place();
  const int64_t size = in_place ? jsonl_.file().size() : 0;
  if (in_place && size == jsonl_.length()) return;
  std::string what = !io::exists(path)        ? "was removed"
                     : !in_place              ? "was replaced"
                     : size < jsonl_.length() ? "was cut"
                                              : "has grown";
  if (io::exists(path) && (!in_place || size > jsonl_.length())) {  // may hold foreign lines
    const std::string aside = free_abandoned_name(directory_, "other.jsonl");
    io::rename_file(path, aside);
    what += fmt::format(" (that file is {} now)", aside);
  }
  io::make_directories(directory_);
  write_lines(path, stored_, groups_);
  io::File file(path, io::File::Mode::append);
  const int64_t bytes = file.size();
  jsonl_.take(std::move(file), bytes);
  base::log::warning("{} {} while this job writes it: made again with all its rows", path, what);
}

bool Metrics::flush_due() const { return writes_ && base::now_s() - flushed_s_ >= flush_s_; }

}  // namespace records
