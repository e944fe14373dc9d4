#include "train/metrics.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/pattern.hpp"
#include "io/h5.hpp"

namespace train {
namespace {

using Json = nlohmann::ordered_json;
constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();
constexpr double kShare = 1.0 / 200;  // of the run's time that writing metrics.h5 may take

Json number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

// Reads a row's values; anything that is not a number belongs to the row itself.
Metrics::Row values_of(const Json& row) {
  Metrics::Row values;
  for (const auto& [name, value] : row.items()) {
    if (name == "step") continue;
    if (value.is_number()) values.emplace_back(name, value.get<double>());
    if (value == "nan") values.emplace_back(name, kNotMeasured);
    if (value == "inf") values.emplace_back(name, std::numeric_limits<double>::infinity());
    if (value == "-inf") values.emplace_back(name, -std::numeric_limits<double>::infinity());
  }
  return values;
}

std::string line_of(Json row, const Metrics::Row& values) {
  for (const auto& [name, value] : values) {
    CHECK(!row.contains(name), "metric {} appears twice in a row", name);
    row[name] = number(value);
  }
  return row.dump() + "\n";
}

// HDF5 group of a row, "" if it is none of ours.
std::string group_of(const Json& row) {
  auto text = [&](const char* name) {
    return row.contains(name) && row[name].is_string() ? row[name].get<std::string>() : std::string();
  };
  std::string kind = text("kind");
  if (kind == "eval") return "/eval/" + text("eval");
  return kind == "train" || kind == "start" ? "/" + kind : "";
}

std::string dataset_name(std::string metric) {
  std::replace(metric.begin(), metric.end(), '/', '~');
  return metric;
}

// Keeps complete lines: what follows the last newline was cut by a crash.
std::string whole_lines(const std::string& path) {
  std::string text = io::exists(path) ? io::read_file(path) : "";
  size_t end = text.rfind('\n');
  size_t whole = end == text.npos ? 0 : end + 1;
  if (whole < text.size()) base::log::warning("{}: dropped a torn last line of {} bytes", path, text.size() - whole);
  text.resize(whole);
  return text;
}

template <class Work>
void for_lines(const std::string& text, Work work) {
  for (size_t begin = 0; begin < text.size();) {
    size_t end = text.find('\n', begin);
    work(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

}  // namespace

// ---------------------------------------------------------------- the table of metrics

const std::vector<MetricInfo>& train_metrics() {
  static const std::vector<MetricInfo> list = {
      {"loss", "nats/token",
       "loss of this step's batch before the update: mean over examples of each caption's mean over its tokens"},
      {"loss_ar", "nats/token", "the same over the examples that are predicted autoregressively"},
      {"loss_parallel", "nats/token", "the same over the examples that are predicted in parallel"},
      {"loss_per_token", "nats/token", "summed over summed tokens of the batch: every token counts the same"},
      {"l2_grads", "1",
       "norm of the gradients before clipping, frozen parameters left out; [G]: of parameters that match G"},
      {"l2_params", "1", "norm of the parameters after the update; [G]: of those that match G"},
      {"l2_updates", "1", "norm of the update as it was added; [G]: of parameters that match G"},
      {"clip", "1", "factor that clipping put on the gradients; 1 = none"},
      {"schedule", "1",
       "multiplier of the update, without learning_rate, evaluated at step - 1; further schedules are numbered"},
      {"ms", "ms", "wall time of the step"},
      {"data_ms", "ms", "of it, the host waiting for data; on a GPU for the next step's, while it may be computing"},
      {"comm_ms", "ms", "of it, the host held by communication; that of NCCL, which runs on the GPU, is in compute_ms"},
      {"compute_ms", "ms", "of it, the rest"},
      {"examples_s", "1/s", "examples per second of this step, all ranks"},
      {"mfu", "1",
       "model FLOPs of the step over its time and the dense peak of all devices (GPUs: data sheet or profile.peak_tflops; CPUs: "
       "measured); NaN: no peak is known"},
      {"hfu", "1", "the same of the products that ran: what is computed twice counts twice, rows left out do not"},
      {"examples_seen", "examples", "since step 0; [D]: of data set D of a mixture"},
      {"epoch", "epochs",
       "examples seen over the size of the training set (of a mixture: of all its data sets together); [D]: of data "
       "set D over its size"},
      {"bad_samples", "examples", "of this step's batch, replaced because they cannot be used (loader.on_bad_sample)"},
      {"progress", "1", "step over total steps"},
      {"core_hours", "h", "job time times compute threads of all ranks, all attempts"},
      {"host_mib", "MiB", "peak resident memory of rank 0's process"},
      {"skipped", "1", "1: something was not finite, so there was no update (guard.nonfinite = skip, or fp16's loss scale)"},
      {"skipped_updates", "1", "steps without an update since step 0"},
      {"loss_scale", "1", "fp16: what this step's gradients were multiplied by while they were formed"},
      {"uptime_s", "s", "since this attempt began"},
  };
  return list;
}

const std::vector<MetricInfo>& eval_metrics() {
  static const std::vector<MetricInfo> list = {
      {"perplexity", "nats/caption",
       "mean over captions of the summed negative log-likelihood (the published code's name for it)"},
      {"perplexity_per_token", "nats/token", "summed negative log-likelihood over summed tokens"},
      {"attempt", "1", "number of this start of the run, from 1"},
      {"time", "s", "since 1970-01-01 UTC"},
      {"killed", "1", "1: the attempt before this one was killed: it ended without a report"},
      {"eval_s", "s", "wall time of the evaluation"},
  };
  return list;
}

const MetricInfo* find_metric(const std::vector<MetricInfo>& list, const std::string& name) {
  for (const MetricInfo& m : list) {
    if (!name.starts_with(m.name)) continue;
    std::string_view rest = std::string_view(name).substr(m.name.size());
    if (rest.find_first_not_of("0123456789") == rest.npos || (rest.front() == '[' && rest.back() == ']')) return &m;
  }
  return nullptr;
}

// ---------------------------------------------------------------- files

namespace {
std::string group_problem(const std::vector<std::string>& groups) {
  for (size_t i = 0; i < groups.size(); ++i) {
    if (std::find(groups.begin(), groups.begin() + long(i), groups[i]) != groups.begin() + long(i))
      return fmt::format("\"{}\" is there twice", groups[i]);
    if (std::string problem = base::pattern_problem(groups[i]); !problem.empty())
      return fmt::format("\"{:.80}\": {}", groups[i], problem);
  }
  return "";
}
}  // namespace

void LogOptions::bind(config::Table& t) {
  using config::OnResume;
  t.key("console_every_steps", console_every_steps, "lines on the console, besides steps 1 to 5 and the last")
      .min(1)
      .unit("steps")
      .on_resume(OnResume::may_change);
  t.key("metrics_every_steps", metrics_every_steps, "rows of metrics.h5 and metrics.jsonl, never smoothed")
      .min(1)
      .unit("steps")
      .on_resume(OnResume::may_change);
  t.key("flush_s", flush_s,
        "a machine that dies takes at most so much of metrics.jsonl with it; and how old metrics.h5 may be")
      .min(0)
      .unit("s")
      .on_resume(OnResume::may_change);
  t.key("groups", groups, "regular expressions on parameter paths: l2 of gradients, parameters and updates for each")
      .check([this] { return group_problem(groups); })
      .on_resume(OnResume::may_change);
  t.key("samples", samples, "write step, position and key of every example trained on to logs/samples, a file per rank")
      .on_resume(OnResume::may_change);
}

Metrics::Metrics(const std::string& directory, int64_t restored_step, int64_t attempt, bool writes,
                 const LogOptions& options, bool killed)
    : directory_(directory), writes_(writes), flush_s_(options.flush_s), attempt_(attempt) {
  if (!writes_) return;
  load(restored_step);
  jsonl_ = io::File(directory_ + "/metrics.jsonl", io::File::Mode::append);
  length_ = jsonl_.size();
  double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  Row start = {{"attempt", double(attempt_)}, {"time", std::round(now * 1e3) / 1e3}, {"killed", double(killed)}};
  append(line_of({{"kind", "start"}, {"step", restored_step}}, start));
  groups_["/start"].add(restored_step, start, false);
  flush();
}

Metrics::~Metrics() {
  if (!writes_ || !jsonl_.is_open()) return;
  try {
    jsonl_.sync();
    if (stale_) write_h5();
  } catch (const std::exception& e) {
    base::log::warning("metrics: {}", e.what());
  }
}

// Splits what earlier attempts wrote into rows that stay and rows past the restored step.
void Metrics::load(int64_t restored_step) {
  std::string path = directory_ + "/metrics.jsonl", abandoned_path = directory_ + "/metrics.abandoned.jsonl";
  std::string text = whole_lines(path), stays, goes;
  // Known ones are not added again: a crash between the two writes below must not count rows twice.
  std::string abandoned = whole_lines(abandoned_path);
  std::unordered_set<std::string> known;
  auto note_uptime = [&](const Json& row, int64_t attempt) {
    if (!row.contains("uptime_s") || !row["uptime_s"].is_number()) return;
    double& last = last_uptime_s_[attempt];
    last = std::max(last, row["uptime_s"].get<double>());
  };
  for_lines(abandoned, [&](const std::string& line) {
    known.insert(line);
    Json row = Json::parse(line, nullptr, false);
    if (row.is_object() && row.contains("attempt") && row["attempt"].is_number())
      note_uptime(row, row["attempt"].get<int64_t>());
  });
  int64_t writer = 1, last_attempt = 0, moved = 0, unreadable = 0, last_train = 0;
  for_lines(text, [&](const std::string& line) {
    Json row = Json::parse(line, nullptr, false);
    std::string group = row.is_object() ? group_of(row) : "";
    if (group.empty() || !row.contains("step") || !row["step"].is_number_integer()) {
      ++unreadable;
      if (known.insert(line).second) goes += line + "\n";
      return;
    }
    int64_t step = row["step"].get<int64_t>();
    if (group == "/start")
      last_attempt = writer = std::max<int64_t>(
          last_attempt,
          int64_t(row.contains("attempt") && row["attempt"].is_number() ? row["attempt"].get<double>() : 1.0));
    // A run that begins anew evaluates at step 0 again.
    if (group == "/train") note_uptime(row, writer);
    bool past = step > restored_step || (restored_step == 0 && group != "/start");
    if (past && group != "/start") {
      row["attempt"] = writer;
      if (std::string old = row.dump(); known.insert(old).second) goes += old + "\n", ++moved;
      return;
    }
    stays += line + "\n";
    groups_[group].add(step, values_of(row), group != "/start");
    if (group == "/train") last_train = step;
  });
  attempt_ = std::max(attempt_, last_attempt + 1);
  if (!goes.empty()) io::write_file_atomically(abandoned_path, abandoned + goes);
  if (stays != text || !io::exists(path) || io::File(path, io::File::Mode::read).size() != int64_t(stays.size()))
    io::write_file_atomically(path, stays);
  if (moved)
    base::log::line("metrics  {} rows past step {} moved to metrics.abandoned.jsonl; this is attempt {}", moved,
                    restored_step, attempt_);
  if (unreadable)
    base::log::warning("{}: {} lines that are no rows moved to metrics.abandoned.jsonl", path, unreadable);
  if (last_train < restored_step && restored_step > 0)
    base::log::warning(
        "{}: no training row of steps {} to {}: the checkpoint is newer than the metrics, or they were not due", path,
        last_train + 1, restored_step);
}

void Metrics::Series::add(int64_t step, const Row& values, bool unique) {
  size_t at = steps.size();
  if (unique)  // a step that is measured again replaces the earlier row
    while (at > 0 && steps[at - 1] >= step) --at;
  if (at == steps.size() || steps[at] != step || !unique) {
    steps.insert(steps.begin() + std::ptrdiff_t(at), step);
    for (auto& [name, column] : columns) column.insert(column.begin() + std::ptrdiff_t(at), kNotMeasured);
  } else {
    for (auto& [name, column] : columns) column[at] = kNotMeasured;
  }
  for (const auto& [name, value] : values) {
    std::vector<double>& column = columns[name];
    column.resize(steps.size(), kNotMeasured);
    column[at] = value;
  }
}

void Metrics::append(const std::string& line) {
  stale_ = true;
  unwritten_ += line;
  try {
    jsonl_.append(unwritten_);
    length_ += int64_t(unwritten_.size());
    unwritten_.clear();
  } catch (const io::Failure& e) {
    jsonl_.truncate(length_);  // never half a line in the middle of the file
    constexpr double kPause_s = 60;
    if (warned_s_ == 0 || base::now_s() - warned_s_ > kPause_s) {
      base::log::warning("metrics: {}; rows are kept in memory until there is room again", e.what());
      warned_s_ = base::now_s();
    }
  }
}

void Metrics::train_row(int64_t step, const Row& values) {
  if (!writes_) return;
  for (const auto& [name, value] : values)
    CHECK(find_metric(train_metrics(), name), "metric {} has no row in train_metrics()", name);
  append(line_of({{"kind", "train"}, {"step", step}}, values));
  groups_["/train"].add(step, values, true);
}

void Metrics::eval_row(const std::string& evaluator, int64_t step, const Row& values) {
  if (!writes_) return;
  append(line_of({{"kind", "eval"}, {"eval", evaluator}, {"step", step}}, values));
  groups_["/eval/" + evaluator].add(step, values, true);
}

void Metrics::set_text(const std::string& name, const std::string& text) { texts_[name] = text, stale_ = true; }

double Metrics::lost_s(int64_t attempt, double uptime_s) const {
  double lost = 0;
  for (const auto& [number, uptime] : last_uptime_s_) {
    if (number == attempt) lost += std::max(0.0, uptime - uptime_s);
    if (number > attempt) lost += uptime;
  }
  return lost;
}

bool Metrics::has_eval(const std::string& evaluator, int64_t step) const {
  auto series = groups_.find("/eval/" + evaluator);
  return series != groups_.end() && std::binary_search(series->second.steps.begin(), series->second.steps.end(), step);
}

void Metrics::flush() {
  if (!writes_) return;
  flushed_s_ = base::now_s();
  try {
    jsonl_.sync();
  } catch (const io::Failure& e) {
    base::log::warning("metrics: {}; the newest rows may be lost if this machine dies", e.what());
  }
  if (!stale_ || (written_s_ > 0 && flushed_s_ - written_s_ < cost_s_ / kShare)) return;
  try {
    write_h5();
  } catch (const base::Error& e) {  // it can be made again from metrics.jsonl
    base::log::warning("metrics.h5 stays as it was: {}", e.what());
  }
  written_s_ = base::now_s();
  cost_s_ = written_s_ - flushed_s_;
}

void Metrics::flush_if_due() {
  if (writes_ && base::now_s() - flushed_s_ >= flush_s_) flush();
}

void Metrics::write_h5() {
  std::lock_guard lock(io::h5_mutex());
  io::H5File file = io::H5File::create(directory_ + "/metrics.h5");
  file.set_attribute("/", "format", int64_t{1});
  file.set_attribute("/", "attempts", attempt_);
  for (const auto& [name, text] : texts_) file.set_attribute("/", name, text);
  for (const auto& [group, series] : groups_) {
    int64_t rows = int64_t(series.steps.size());
    // Small runs stay small files, long ones get few chunks.
    int64_t chunk = std::clamp<int64_t>(int64_t(std::bit_ceil(uint64_t(rows))), 64, 16384);
    file.create_extendible(group + "/step", io::H5Type::i64, rows, chunk);
    file.write<int64_t>(group + "/step", series.steps);
    for (const auto& [name, column] : series.columns) {
      std::string dataset = group + "/" + dataset_name(name);
      file.create_extendible(dataset, io::H5Type::f64, rows, chunk);
      file.write<double>(dataset, column);
      const MetricInfo* info = find_metric(group == "/train" ? train_metrics() : eval_metrics(), name);
      file.set_attribute(dataset, "unit", info ? info->unit : std::string("1"));
      if (info) file.set_attribute(dataset, "doc", info->doc);
      if (dataset_name(name) != name) file.set_attribute(dataset, "name", name);
    }
  }
  file.close();
  stale_ = false;
}

}  // namespace train
