// SPDX-License-Identifier: Apache-2.0
#include "train/run_log.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/log_components.hpp"
#include "base/span.hpp"
#include "base/text.hpp"
#include "checkpoint/catalogue.hpp"
#include "checkpoint/checksum.hpp"
#include "device/gpu.hpp"
#include "eval/evaluator.hpp"
#include "host/mfu.hpp"
#include "host/node_memory.hpp"
#include "job/goodput.hpp"
#include "train/console.hpp"
#include "train/evaluation_journal.hpp"
#include "train/phases.hpp"

namespace train {
namespace log = base::log;

namespace {

// Returns the peak resident memory of this process in MiB.
double host_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return double(usage.ru_maxrss) / 1024;
}

}  // namespace

void RunLog::record(const step::StepReport& report, bool skipped) {
  attempt_.charge_training();
  attempt_.pace.waited(report.data_s, report.comm_s);
  const double seconds = std::exchange(attempt_.step_s, 0);
  if (!std::exchange(any_step_, true)) first_step_s_ = seconds;
  attempt_.pace.step_done(seconds, attempt_.engine().geometry().global_batch);
  last_loss_ = report.loss();
  window_.add(report.measures);
  attempt_.state.losses.add(attempt_.settled, report.measures);
  const int64_t step = attempt_.settled, total = attempt_.total;
  attempt_.state.progress.bad_samples += feed_.replaced(step);
  const Utilisation use = utilisation(report, seconds);
  const records::LogOptions& options = attempt_.recipe.log;
  const bool ends = options.epoch_means && add_to_epoch(report, skipped);
  if (ends || config::is_time(step, options.metrics_every_steps, total) ||
      options.wants_memory(step))
    write_row(report, skipped, seconds, use);
  if (ends) end_epoch();
  if (step > options.console_first_steps &&
      !config::is_time(step, options.console_every_steps, total))
    return;
  write_line(report, seconds, use);
  explain(use);
}

// An epoch ends with the step whose batch holds the last example of a pass over the data.
bool RunLog::epoch_ends() const {
  const int64_t size = attempt_.job.data().size(), step = attempt_.settled;
  return attempt_.state.examples_seen(step) / size > attempt_.state.examples_seen(step - 1) / size;
}

bool RunLog::add_to_epoch(const step::StepReport& report, bool skipped) {
  EpochMeans& means = attempt_.state.epoch_means;
  if (!skipped) means.add(report.sums, attempt_.engine().geometry().global_batch);
  return epoch_ends() || attempt_.settled == attempt_.total;
}

void RunLog::end_epoch() {
  EpochMeans& means = attempt_.state.epoch_means;
  if (means.examples() > 0) {
    const int64_t seen = attempt_.state.examples_seen(attempt_.settled);
    std::string text;
    for (const models::Measure& m : attempt_.engine().measures())
      text += fmt::format(" {}={}", m.name, loss_text(means.mean(m)));
    log::info(log::Component::train, "epoch={:.2f} step={}{} examples={}",
              double(seen) / double(attempt_.job.data().size()), attempt_.settled, text,
              means.examples());
  }
  // If the end of the run is moved, the means of an unfinished epoch continue.
  if (epoch_ends()) means.clear();
}

RunLog::Utilisation RunLog::utilisation(const step::StepReport& report, double seconds) const {
  const double peak = attempt_.pace.peak_flops;
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  if (!(peak > 0)) return {kUnknown, kUnknown};
  const double per_s = 1 / (seconds * peak);
  const double ran =
      double(report.flops) * attempt_.job.mesh().shape.ranks();  // ranks have equal shares
  step::Engine& engine = attempt_.engine();
  return {double(engine.model().train_flops()) * double(engine.geometry().global_batch) * per_s,
          ran * per_s};
}

void RunLog::write_row(const step::StepReport& report, bool skipped, double seconds,
                       const Utilisation& use) {
  const int64_t step = attempt_.settled;
  const Progress& progress = attempt_.state.progress;
  const step::Engine& engine = attempt_.engine();
  const std::vector<models::Measure>& measures = engine.measures();
  records::Metrics::Row row;
  for (size_t i = 0; i < measures.size(); ++i)
    row.emplace_back(measures[i].name, report.measures[i]);
  const EpochMeans& means = attempt_.state.epoch_means;
  if (attempt_.recipe.log.epoch_means && means.examples() > 0 &&
      (epoch_ends() || step == attempt_.total))
    for (const models::Measure& m : measures)
      row.emplace_back(fmt::format("epoch_mean[{}]", m.name), means.mean(m));
  row.insert(row.end(),
             {{"l2_grads", report.gradients.gradients.global},
              {"skipped", double(skipped)},
              {"skipped_updates", double(progress.skipped_steps + progress.overflowed_steps)}});
  if (engine.scales_loss()) row.emplace_back("loss_scale", report.gradients.loss_scale);
  if (attempt_.job.device().kind == device::Kind::cuda)
    for (size_t i = 0; i < report.paths.size(); ++i)
      row.emplace_back(kernels::name_of(kernels::Path(i)), double(report.paths[i]));
  if (!skipped) {  // the step made an update
    row.insert(row.end(), {{"l2_params", report.update.parameters.global},
                           {"l2_updates", report.update.updates.global},
                           {"clip", report.gradients.clip}});
    for (size_t i = 0; i < report.update.schedules.size(); ++i)
      row.emplace_back(i ? fmt::format("schedule{}", i) : "schedule", report.update.schedules[i]);
  }
  const std::vector<std::string>& groups = attempt_.recipe.log.groups;
  for (size_t i = 0; i < groups.size(); ++i) {
    row.emplace_back(fmt::format("l2_grads[{}]", groups[i]),
                     report.gradients.gradients.per_group[i]);
    if (skipped) continue;
    row.emplace_back(fmt::format("l2_params[{}]", groups[i]),
                     report.update.parameters.per_group[i]);
    row.emplace_back(fmt::format("l2_updates[{}]", groups[i]), report.update.updates.per_group[i]);
  }
  add_machine(row, seconds);
  const data::Mixture& data = attempt_.job.data();
  const int64_t batch = engine.geometry().global_batch;
  const double seen = double(attempt_.state.examples_seen(step));
  row.insert(row.end(), {{"ms", seconds * 1e3},
                         {"data_ms", report.data_s * 1e3},
                         {"comm_ms", report.comm_s * 1e3},
                         {"compute_ms", (seconds - report.data_s - report.comm_s) * 1e3},
                         {"mfu", use.mfu},
                         {"hfu", use.hfu},
                         {"examples_seen", seen},
                         {"epoch", seen / double(data.size())},
                         {"bad_samples", double(feed_.replaced(step))},
                         {"progress", double(step) / double(attempt_.total)},
                         {"goodput", progress.times.training / progress.times.total()},
                         {"uptime_s", attempt_.uptime_s()}});
  slow_ranks_.add_to(row);
  if (const int64_t every = attempt_.recipe.train.test_every; every > 0) {
    const int64_t epoch = attempt_.state.examples_seen(step - 1) / data.size();
    row.emplace_back("train_phase", double(epoch));
    row.emplace_back("phase", double(phase_of_epoch(epoch, every)));
  }
  if (!attempt_.recipe.train.mixture.empty())
    for (int k = 0; k < int(data.parts().size()); ++k) {
      const data::Dataset& set = data.dataset(k);
      const double own = double(data.seen(k, step * batch + progress.stream_offset) +
                                data.seen(k, progress.stream_before));
      row.emplace_back(fmt::format("examples_seen[{}]", set.name()), own);
      row.emplace_back(fmt::format("epoch[{}]", set.name()), own / double(set.size()));
    }
  files_.metrics().train_row(step, row);
}

// Adds what the step cost: rates, time by kind of device, memory.
void RunLog::add_machine(records::Metrics::Row& row, double seconds) {
  const Progress& progress = attempt_.state.progress;
  const double examples_s = double(attempt_.engine().geometry().global_batch) / seconds,
               devices = attempt_.pace.cores * progress.device_times.per_core();
  row.insert(row.end(), {{"examples_s", examples_s},
                         {"examples_s_core", examples_s / devices},
                         {"core_hours", progress.core_hours()},
                         {"host_mib", host_mib()}});
  const bool wants_memory = attempt_.recipe.log.wants_memory(attempt_.settled);
  constexpr double kMemory_s =
      0.5;  // reading takes some 0.1 ms, which is much for the smallest steps
  if (wants_memory || base::now_s() - memory_read_s_ > kMemory_s) {
    memory_ = base::process_memory();
    memory_read_s_ = base::now_s();
  }
  row.insert(row.end(), {{"host_anon_mib", double(memory_.anonymous) / 0x1p20},
                         {"host_file_mib", double(memory_.file) / 0x1p20},
                         {"host_shared_mib", double(memory_.shared) / 0x1p20}});
  if (wants_memory)
    for (const auto& [category, entry] : attempt_.engine().ledger().entries())
      row.emplace_back(fmt::format("memory_mib[{}]", category), double(entry.now) / 0x1p20);
  for (const auto& [kind, device_s] : progress.device_times.seconds())
    row.emplace_back(fmt::format("core_hours[{}]", kind), device_s / 3600);
  if (const host::NodeMemory node = host::node_memory(); node.available_kib > 0)
    row.emplace_back("host_available_mib", double(node.available_kib) / 1024);
  if (attempt_.job.device().kind == device::Kind::cuda) {
    const device::Ledger& ledger = attempt_.engine().ledger();
    const int64_t on_host = ledger.peak_of(eval::kFeatureCategory);
    row.insert(row.end(), {{"device_mib", double(device::gpu_memory_used_bytes()) / 0x1p20},
                           {"device_peak_mib", double(ledger.total_peak() - on_host) / 0x1p20}});
  }
  if (first_step_s_) row.emplace_back("first_step_s", *std::exchange(first_step_s_, {}));
}

void RunLog::write_line(const step::StepReport& report, double seconds, const Utilisation& use) {
  const base::Span span("write to the console");  // whose reader may block
  const int64_t step = attempt_.settled;
  const Pace& pace = attempt_.pace;
  const std::vector<models::Measure>& measures = attempt_.engine().measures();
  std::string line = fmt::format("step={}", step);
  for (size_t i = 0; i < measures.size(); ++i)
    if (measures[i].on_console)
      line += fmt::format(" {}={}", measures[i].name, loss_text(window_.median(i)));
  line += fmt::format(" l2_grads={:.4g}", report.gradients.gradients.global);
  const std::vector<float>& schedules = report.update.schedules;
  for (size_t i = 0; i < schedules.size(); ++i)
    line += fmt::format(" schedule{}={:.4g}", i ? std::to_string(i) : "", schedules[i]);
  line += fmt::format(" ms={:.1f}", seconds * 1e3);
  const double batch = double(attempt_.engine().geometry().global_batch);
  if (!pace.timed())
    line += " note=\"first steps, not timed\"";
  else
    line += fmt::format(" examples_s={:.1f} mfu={} data_ms={:.1f} comm_ms={:.1f} eta={}",
                        batch / seconds,
                        std::isnan(use.mfu) ? "unknown" : fmt::format("{:.1f}%", 100 * use.mfu),
                        report.data_s * 1e3, report.comm_s * 1e3,
                        base::hms(double(attempt_.total - step) * pace.mean_step_s()));
  log::info(log::Component::train, "{}", line);
}

void RunLog::explain(const Utilisation& use) {
  if (!attempt_.pace.timed() || utilisation_explained_) return;
  const bool measured =
      attempt_.job.device().kind == device::Kind::cpu && attempt_.recipe.profile.peak_tflops == 0;
  const std::string note =
      host::utilisation_note(use.mfu, use.hfu, attempt_.pace.peak_flops, measured);
  utilisation_explained_ = !note.empty();
  if (utilisation_explained_) log::line("compute  {}", note);
}

void RunLog::warn_if_diverged() const {
  constexpr double kFar = 2;  // times the loss of a uniform guess; a run that learns begins near 1
  const double guess = attempt_.engine().model().uniform_loss();
  if (!attempt_.leads() || !(last_loss_ > kFar * guess))
    return;  // NaN: no step was made, or the model has no such loss
  log::warning(
      "the run has diverged: its last loss, {:.6g}, is far above {:.6g}, the loss of a uniform "
      "guess. Lower optimizer.learning_rate or set optimizer.clip_norm, and train again in another "
      "run.dir or from an earlier checkpoint (checkpoint.resume)",
      last_loss_, guess);
}

void RunLog::finish() const {
  const RunState& state = attempt_.state;
  const Progress& progress = state.progress;
  const Progress::Times& t = progress.times;
  const std::string& dir = attempt_.recipe.run.dir;
  const double seen = double(state.examples_seen(attempt_.settled));
  auto share = [&](double seconds) { return 100 * seconds / std::max(t.total(), 1e-9); };
  log::line(
      "finished step={} examples={} epochs={:.1f}{} attempts={}{}", state.step, int64_t(seen),
      seen / double(attempt_.job.data().size()),
      std::isnan(last_loss_) ? "" : fmt::format(" loss={:.6f}", last_loss_), progress.attempts,
      state.step < attempt_.total
          ? fmt::format("  early_stop: {} has not improved on {:.6g} (step {}) in {} evaluations",
                        state.patience.text(), state.patience.value(), state.patience.step(),
                        state.patience.waiting())
          : "");
  log::line(
      "time     {} of job time: training {:.1f} %  evaluation {:.1f} %  checkpoints {:.1f} %  "
      "start-up {:.1f} %  redone after restart {:.1f} %",
      base::hms(t.total()), share(t.training), share(t.evaluation), share(t.checkpoint),
      share(t.setup), share(t.redone));
  log::line("cost     {:.4f} core hours of all attempts; mean {:.1f} examples/s while training",
            progress.core_hours(), attempt_.pace.examples_per_s());
  print_goodput();
  print_digest();
  if (progress.bad_samples)
    log::line("data     {} examples were replaced for {} bad samples: {}/logs/bad_samples.txt",
              base::with_commas(progress.bad_samples), base::with_commas(feed_.broken_samples()),
              dir);
  print_counts(attempt_.world(), attempt_.job.data());
  finish_input();
  finish_guard();
  finish_memory();
  warn_if_diverged();
  if (log::warnings_so_far())
    log::line("warnings {} in {}/logs/warnings.txt", log::warnings_so_far(), dir);
  finish_best();
  log::line("files    {}: checkpoints/  metrics.h5  metrics.jsonl  deck.resolved.toml  logs/", dir);
  log::line("next     tools/plot_metrics {}", dir);
  log::line("next     tools/report {}", dir);
  log::line("done     exit=0");
}

// Runs with equal digests had equal losses in all steps and have equal weights, to the last bit.
void RunLog::print_digest() const {
  const LossDigest& losses = attempt_.state.losses;
  const std::string weights = weights_digest(attempt_.job, step::Weights::raw);
  if (losses.first_step() == 0) return;
  log::line(
      "digest   losses={} weights={}{}", checkpoint::hex(losses.hash()), weights,
      losses.first_step() == 1
          ? ""
          : fmt::format("  losses since step {}: no file holds earlier ones", losses.first_step()));
}

void RunLog::print_goodput() const {
  const job::AttemptLog* log = attempt_.directory->attempts();
  if (!log) return;
  for (const std::string& text : job::goodput_lines(*log, attempt_.pace.spent()))
    log::line("{}", text);
}

void RunLog::finish_input() const {
  if (!attempt_.recipe.train.until_input_ends() || attempt_.state.step < attempt_.total) return;
  const int64_t end = attempt_.job.data_length().end, batch = attempt_.state.global_batch;
  const int64_t read = attempt_.total * batch + attempt_.state.progress.stream_offset;
  if (read + batch <= end) return;  // a trial that ends earlier
  log::line("input    its end was reached: {} examples{}", base::with_commas(end),
            read == end ? ""
                        : fmt::format("; the last {} do not fill a batch and were not read",
                                      base::with_commas(end - read)));
}

void RunLog::finish_guard() const {
  const Progress& progress = attempt_.state.progress;
  if (progress.skipped_steps || progress.skipped_examples)
    log::line("guard    {} steps without an update, {} examples left out", progress.skipped_steps,
              base::with_commas(progress.skipped_examples));
  if (attempt_.engine().scales_loss())
    log::line("fp16     {} steps without an update because gradients overflowed; loss scale {:g}",
              progress.overflowed_steps, attempt_.engine().scale_state().scale);
}

void RunLog::finish_memory() const {
  const step::Engine& engine = attempt_.engine();
  if (engine.graphs()) {
    const device::Graphs::Counts& c = engine.graphs()->counts();
    log::line(
        "graphs   {} of {} passes of this attempt were one launch; {} graphs of {} kernels and "
        "copies, about {} MiB of the GPU",
        base::with_commas(c.launches), base::with_commas(c.runs), c.graphs,
        base::with_commas(c.nodes), base::mebibytes(c.bytes));
  }
  log::line(
      "memory   peak of the activation arena {} bytes per rank (planned {}); host {:.0f} MiB at "
      "rank 0",
      base::with_commas(engine.arena_peak()),
      base::with_commas(engine.ledger().peak_of("activations")), host_mib());
}

void RunLog::finish_best() const {
  const Tracker& best = attempt_.state.best;
  if (!best.has_value()) return;
  const int64_t held = checkpoint::best_held(attempt_.directory->checkpoints());
  const std::string file =
      fmt::format("{}/checkpoints/{}", attempt_.recipe.run.dir, checkpoint::kBest);
  log::line("best     {} {:.6g} at step {}{}", best.text(), best.value(), best.step(),
            held == best.step() ? " -> " + file
            : held < 0          ? std::string("; its weights were not kept")
                       : fmt::format("; its weights were not kept, {} holds weights of step {}",
                                     file, held));
}

}  // namespace train
