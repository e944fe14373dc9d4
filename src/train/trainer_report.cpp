// What a run tells: rows of the metrics, lines of the console, the last words.
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/log.hpp"
#include "base/text.hpp"
#include "checkpoint/catalogue.hpp"
#include "train/mfu.hpp"
#include "train/report.hpp"
#include "train/trainer.hpp"

namespace train {
namespace log = base::log;

namespace {

// Peak resident memory of this process, in MiB.
double host_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return double(usage.ru_maxrss) / 1024;
}

}  // namespace

int64_t Trainer::examples_seen() const { return settled_ * job_.engine().geometry().global_batch + progress_.seen_offset; }

void Trainer::record(const StepReport& report, bool skipped) {
  const Geometry& g = job_.engine().geometry();
  charge_training();
  const double seconds = std::exchange(step_s_, 0);
  progress_.step_done(seconds, g.global_batch);
  const double per_s = 1 / (seconds * progress_.peak_flops);  // infinite where the peak is not known
  const double unknown = std::numeric_limits<double>::quiet_NaN();
  double mfu = progress_.peak_flops > 0 ? double(job_.engine().model().train_flops()) * double(g.global_batch) * per_s : unknown;
  const double ran = double(report.flops) * job_.mesh().shape.ranks();  // the ranks have alike
  double hfu = progress_.peak_flops > 0 ? ran * per_s : unknown;
  last_loss_ = report.loss();

  const int64_t bad_samples = bad_samples_of_[settled_ % 2];
  progress_.bad_samples += bad_samples;

  const std::vector<models::Measure>& measures = job_.engine().measures();
  bool metrics_due = config::is_time(settled_, recipe_.log.metrics_every_steps, total_);
  if (metrics_due) {
    Metrics::Row row;
    for (size_t i = 0; i < measures.size(); ++i) row.emplace_back(measures[i].name, report.measures[i]);
    row.insert(row.end(), {{"l2_grads", report.gradients.gradients.global},
                           {"skipped", double(skipped)},
                           {"skipped_updates", double(progress_.skipped_steps + progress_.overflowed_steps)}});
    if (job_.engine().scales_loss()) row.emplace_back("loss_scale", report.gradients.loss_scale);
    if (!skipped) {  // there was an update to speak of
      row.insert(row.end(), {{"l2_params", report.update.parameters.global},
                             {"l2_updates", report.update.updates.global},
                             {"clip", report.gradients.clip}});
      for (size_t i = 0; i < report.update.schedules.size(); ++i)
        row.emplace_back(i ? fmt::format("schedule{}", i) : "schedule", report.update.schedules[i]);
    }
    for (size_t i = 0; i < recipe_.log.groups.size(); ++i) {
      row.emplace_back(fmt::format("l2_grads[{}]", recipe_.log.groups[i]), report.gradients.gradients.per_group[i]);
      if (skipped) continue;
      row.emplace_back(fmt::format("l2_params[{}]", recipe_.log.groups[i]), report.update.parameters.per_group[i]);
      row.emplace_back(fmt::format("l2_updates[{}]", recipe_.log.groups[i]), report.update.updates.per_group[i]);
    }
    row.insert(row.end(), {{"ms", seconds * 1e3},
                           {"data_ms", report.data_s * 1e3},
                           {"comm_ms", report.comm_s * 1e3},
                           {"compute_ms", (seconds - report.data_s - report.comm_s) * 1e3},
                           {"examples_s", double(g.global_batch) / seconds},
                           {"mfu", mfu},
                           {"hfu", hfu},
                           {"examples_seen", double(examples_seen())},
                           {"epoch", double(examples_seen()) / double(job_.data().size())},
                           {"bad_samples", double(bad_samples)},
                           {"progress", double(settled_) / double(total_)},
                           {"core_hours", progress_.core_hours()},
                           {"host_mib", host_mib()},
                           {"uptime_s", base::now_s() - start_s_}});
    for (int k = 0; recipe_.train.mixture.size() > 0 && k < int(job_.data().parts().size()); ++k) {
      const data::Dataset& set = job_.data().dataset(k);
      double seen = double(job_.data().seen(k, settled_ * g.global_batch + progress_.stream_offset));
      row.emplace_back(fmt::format("examples_seen[{}]", set.name()), seen);
      row.emplace_back(fmt::format("epoch[{}]", set.name()), seen / double(set.size()));
    }
    metrics_->train_row(settled_, row);
  }
  if (settled_ > 5 && !config::is_time(settled_, recipe_.log.console_every_steps, total_)) return;
  std::string line = fmt::format("step={}", settled_);
  for (size_t i = 0; i < measures.size(); ++i)
    if (measures[i].on_console) line += fmt::format(" {}={}", measures[i].name, loss_text(report.measures[i]));
  line += fmt::format(" l2_grads={:.4g}", report.gradients.gradients.global);
  for (size_t i = 0; i < report.update.schedules.size(); ++i)
    line += fmt::format(" schedule{}={:.4g}", i ? std::to_string(i) : "", report.update.schedules[i]);
  line += fmt::format(" ms={:.1f}", seconds * 1e3);
  if (!progress_.timed())
    line += " note=\"first steps, not timed\"";
  else
    line += fmt::format(" examples_s={:.1f} mfu={} data_ms={:.1f} comm_ms={:.1f} eta={}", double(g.global_batch) / seconds,
                        std::isnan(mfu) ? "unknown" : fmt::format("{:.1f}%", 100 * mfu), report.data_s * 1e3, report.comm_s * 1e3,
                        base::hms(double(total_ - settled_) * progress_.mean_step_s()));
  log::line("{}", line);
  if (!progress_.timed() || utilisation_explained_) return;
  const bool measured = job_.engine().queue().kind() == device::Kind::cpu && recipe_.profile.peak_tflops == 0;
  const std::string note = utilisation_note(mfu, hfu, progress_.peak_flops, measured);
  utilisation_explained_ = !note.empty();
  if (utilisation_explained_) log::line("compute  {}", note);
}

// Rank 0's part: what went wrong in preprocessing shows here first.
void Trainer::describe_first_batch(const data::Batch& batch) {
  first_batch_told_ = true;
  std::string text;
  const std::map<std::string, models::FeatureSpec> features = job_.engine().model().features();
  for (const auto& [field, array] : batch.arrays) {
    device::View v = array.view();
    const auto feature = features.find(field);
    const bool padded = feature != features.end() && feature->second.pad.has_value();
    const double pad = padded ? *feature->second.pad : 0;
    const bool pixels = v.type == device::DType::f32 || v.type == device::DType::u8;
    if (v.count == 0 || (!pixels && v.type != device::DType::i32)) continue;
    double least = INFINITY, most = -INFINITY, sum = 0;
    int64_t pads = 0;
    for (int64_t i = 0; i < v.count; ++i) {
      double x = v.type == device::DType::f32  ? double(v.f32()[i])
                 : v.type == device::DType::u8 ? double(v.u8()[i])
                                               : double(v.i32()[i]);
      least = std::min(least, x), most = std::max(most, x), sum += x;
      pads += padded && x == pad;
    }
    text += pixels ? fmt::format("  {} min {:.4g} mean {:.4g} max {:.4g}", field, least, sum / double(v.count), most)
                   : fmt::format("  {} min {:.0f} max {:.0f}", field, least, most);
    if (!pixels && padded) text += fmt::format(", {:.1f} % pad", 100 * double(pads) / double(v.count));
  }
  log::line("first batch{}", text);
}

// A finite loss stops no run (guard.nonfinite), but one that is worse than knowing nothing must not end in silence.
void Trainer::warn_if_diverged() const {
  constexpr double kFar = 2;  // times the loss of a uniform guess; a run that learns begins near 1
  const double guess = job_.engine().model().uniform_loss();
  if (job_.mesh().rank() != 0 || !(last_loss_ > kFar * guess)) return;  // NaN: no step was made, or there is no such loss
  log::warning("the run has diverged: its last loss, {:.6g}, is far above {:.6g}, the loss of a uniform guess. Lower "
               "optimizer.learning_rate or set optimizer.clip_norm, and train again in another run.dir or from an "
               "earlier checkpoint (checkpoint.resume)",
               last_loss_, guess);
}

// After a stop: the run is not finished.
base::Exit Trainer::leave(StopReason stop) {
  flush_metrics();
  warn_if_diverged();
  const bool gained = step_ > first_step_ || caught_up_;
  base::Exit code = stops_->exit(gained);
  stops_->done(stop);
  std::string way_out = stop == StopReason::budget ? "raise limits.core_hours to continue" : "start the same command to continue";
  if (stops_->too_short(gained)) {
    way_out = stops_->way_out(first_outlook());
    if (job_.mesh().rank() == 0) write_report(int(code), fmt::format("{}; {}", stops_->text(), way_out));
  }
  log::line("stopped  step={} of {}: {}; {}", step_, total_, stops_->text(), way_out);
  log::line("done     exit={}", int(code));
  return code;
}

// The outlook of an attempt that has measured no step: its time is counted from FLOPs, where the peak is known.
Outlook Trainer::first_outlook() const {
  Outlook o = outlook();
  const double flops = double(job_.engine().model().train_flops()) * double(job_.engine().geometry().global_batch);
  if (progress_.peak_flops > 0) o.step_s = std::max(o.step_s, flops / progress_.peak_flops);
  return o;
}

void Trainer::finish() {
  flush_metrics();
  stops_->done(StopReason::stop_file);  // nothing is left to stop; it must not hit a longer run
  const Progress::Times& t = progress_.times;
  double total = t.total();
  auto share = [&](double seconds) { return 100 * seconds / std::max(total, 1e-9); };
  log::line("finished step={} examples={} epochs={:.1f}{} attempts={}{}", step_, examples_seen(),
            double(examples_seen()) / double(job_.data().size()),
            std::isnan(last_loss_) ? "" : fmt::format(" loss={:.6f}", last_loss_), progress_.attempts,
            step_ < total_ ? fmt::format("  early_stop: {} has not improved on {:.6g} (step {}) in {} evaluations",
                                         patience_.text(), patience_.value(), patience_.step(), patience_.waiting())
                           : "");
  log::line(
      "time     {} of job time: training {:.1f} %  evaluation {:.1f} %  checkpoints {:.1f} %  start-up {:.1f} %  "
      "redone after "
      "restart {:.1f} %",
      base::hms(total), share(t.training), share(t.evaluation), share(t.checkpoint), share(t.setup), share(t.redone));
  log::line("cost     {:.4f} core hours of all attempts; mean {:.1f} examples/s while training", progress_.core_hours(),
            progress_.examples_per_s());
  if (progress_.bad_samples)
    log::line("data     {} examples were replaced for {} bad samples: {}/logs/bad_samples.txt",
              base::with_commas(progress_.bad_samples), base::with_commas(bad_samples_->known()), recipe_.run.dir);
  print_captions(*job_.mesh().world, job_.data());
  if (progress_.skipped_steps || progress_.skipped_examples)
    log::line("guard    {} steps without an update, {} examples left out", progress_.skipped_steps,
              base::with_commas(progress_.skipped_examples));
  if (job_.engine().scales_loss())
    log::line("fp16     {} steps without an update because gradients overflowed; loss scale {:g}", progress_.overflowed_steps,
              job_.engine().scale_state().scale);
  if (job_.engine().graphs()) {
    const device::Graphs::Counts& c = job_.engine().graphs()->counts();
    log::line("graphs   {} of {} passes of this attempt were one launch; {} graphs of {} kernels and copies, about {} MiB of the GPU",
              base::with_commas(c.launches), base::with_commas(c.runs), c.graphs, base::with_commas(c.nodes), base::mebibytes(c.bytes));
  }
  log::line("memory   peak of the activation arena {} bytes per rank (planned {}); host {:.0f} MiB at rank 0",
            base::with_commas(job_.engine().arena_peak()), base::with_commas(job_.engine().ledger().peak_of("activations")),
            host_mib());
  warn_if_diverged();
  if (log::warnings_so_far()) log::line("warnings {} in {}/logs/warnings.txt", log::warnings_so_far(), recipe_.run.dir);
  if (best_.has_value()) {
    int64_t held = checkpoint::best_held(directory_->checkpoints());
    std::string file = fmt::format("{}/checkpoints/{}", recipe_.run.dir, checkpoint::kBest);
    log::line("best     {} {:.6g} at step {}{}", best_.text(), best_.value(), best_.step(),
              held == best_.step() ? " -> " + file
              : held < 0           ? std::string("; its weights were not kept")
                                   : fmt::format("; its weights were not kept, {} is of step {}", file, held));
  }
  log::line("files    {}: checkpoints/  metrics.h5  metrics.jsonl  deck.resolved.toml  logs/", recipe_.run.dir);
  log::line("next     tools/plot_metrics {}", recipe_.run.dir);
  log::line("done     exit=0");
}

}  // namespace train
