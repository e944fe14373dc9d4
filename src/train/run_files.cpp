// SPDX-License-Identifier: Apache-2.0
#include "train/run_files.hpp"

#include "base/log.hpp"
#include "device/gpu.hpp"
#include "host/node_memory.hpp"
#include "io/waiting.hpp"
#include "train/console.hpp"

namespace train {

RunFiles::~RunFiles() { io::give_up_waiting(); }

void RunFiles::open_metrics(bool after_kill) {
  const Recipe& recipe = attempt_.recipe;
  RunState& state = attempt_.state;
  records::DeclaredMetrics declared;
  for (const models::Measure& m : attempt_.engine().measures())
    declared[records::kTrainRows].push_back({m.name, m.unit, m.doc});
  for (const auto& [name, options] : recipe.evaluations())
    for (const eval::Metric& m : eval::metrics_of(options))
      declared[records::eval_rows(name)].push_back({m.name, m.unit, m.doc});
  metrics_.reset();
  metrics_ = std::make_unique<records::Metrics>(recipe.run.dir, state.step, state.progress.attempts,
                                                attempt_.leads(), recipe.log, after_kill,
                                                std::move(declared), about_attempt());
  attempt_.metrics = metrics_.get();
  metrics_->tell_rows([this](const std::string& group, int64_t step, const auto& values) {
    attempt_.observers.tell(&Observer::row, group, step, values);
  });
  state.progress.attempts = attempt_.world().max(metrics_->attempt());
  metrics_->set_text("run", recipe.run.name);
  metrics_->set_text("notes", recipe.run.notes);
  metrics_->set_text("origin", state.origin);
  metrics_->set_text("version", version());
  if (const job::AttemptLog* log = attempt_.directory->attempts())
    for (const job::StartRecord& start : log->starts())
      if (!start.facts.empty())
        metrics_->set_facts(
            start.attempts.empty() ? state.progress.attempts : start.attempts.front(), start.facts);
}

// Returns the numbers of the start row about the model and the machine.
records::Metrics::Row RunFiles::about_attempt() const {
  int64_t parameters = 0;
  for (const shard::Parameter& p : attempt_.engine().layout().parameters())
    if (p.kind != shard::ParameterKind::state) parameters += p.size;
  records::Metrics::Row row = {{"num_params", double(parameters)}, {"init_s", attempt_.init_s}};
  if (const host::NodeMemory node = host::node_memory(); node.total_kib > 0)
    row.emplace_back("host_total_mib", double(node.total_kib) / 1024);
  if (attempt_.job.device().kind == device::Kind::cuda)
    row.emplace_back("device_total_mib", double(device::gpu_memory_bytes()) / 0x1p20);
  const job::AttemptLog* log = attempt_.directory->attempts();
  // A rewind begins another attempt, but does not start the program again.
  if (log && log->own().attempts.empty() && log->starts().size() > 1)
    row.insert(row.end(), {{"exit_before", double(log->starts()[log->starts().size() - 2].exit)},
                           {"idle_s", log->idle_s()},
                           {"redone_s", log->redone_s()}});
  return row;
}

void RunFiles::open_sample_log() {
  if (!attempt_.recipe.log.samples) return;
  sample_log_ = std::make_unique<records::SampleLog>(attempt_.world(),
                                                     attempt_.directory->logs() + "/samples",
                                                     attempt_.state.step, attempt_.job.data());
}

void RunFiles::write_deck() const {
  io::write_or_wait(attempt_.recipe.run.dir + "/deck.resolved.toml",
                    attempt_.job.deck().resolved());
}

void RunFiles::watch(bool now) {
  job::RunDirectory::Watched watched;
  try {
    watched = attempt_.directory->watch(now);
  } catch (const base::Error&) {
    if (attempt_.directory->lost()) {
      metrics_->let_go();
      io::forget_waiting();
    }
    throw;
  }
  if (watched.ours && sample_log_) sample_log_->keep();
  if (watched.made_again) write_deck();
}

void RunFiles::flush() {
  metrics_->flush([this] { watch(true); });
  io::write_waiting();
}

}  // namespace train
