// SPDX-License-Identifier: Apache-2.0
#include "train/evaluations.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/log.hpp"
#include "device/range.hpp"

namespace train {
namespace log = base::log;

Evaluations::Evaluations(Attempt& attempt, RunFiles& files, Feed& feed,
                         std::function<bool()> must_stop)
    : attempt_(attempt), files_(files), feed_(feed), must_stop_(std::move(must_stop)) {
  for (const auto& [name, options] : attempt.recipe.evaluations()) {
    const EvaluationTimes times{attempt.period(options.every), options.at_start, options.at_end};
    evaluations_.push_back(
        {name, times, options, eval::make_evaluator(options), attempt.job.evaluated(options.data)});
    evaluations_.back().evaluator->check(evaluations_.back().dataset);
  }
}

void Evaluations::find_passes() {
  step::Engine& engine = attempt_.engine();
  for (Evaluation& e : evaluations_)
    e.pass = engine.find_pass(eval::row_of(e.options).make_pass(engine.model())->name());
}

bool Evaluations::due(int64_t step) const {
  return std::any_of(evaluations_.begin(), evaluations_.end(), [&](const Evaluation& e) {
    return e.times.due(step, attempt_.total, step == attempt_.total);
  });
}

bool Evaluations::stopped_early() const {
  const EarlyStopOptions& early = attempt_.recipe.early_stop;
  return early.patience_evals > 0 && attempt_.state.patience.waiting() >= early.patience_evals &&
         double(attempt_.state.step) >= early.not_before_fraction * double(attempt_.total);
}

bool Evaluations::wanted(const Evaluation& e, Which which) const {
  const int64_t step = attempt_.state.step;
  const bool last = step == attempt_.total || stopped_early();
  // Only rank 0 has the metrics.
  auto has_values = [&] {
    return attempt_.world().max(int64_t(files_.metrics().has_eval(e.name, step))) > 0;
  };
  return is_wanted(e.times, which, step, attempt_.total, last, has_values);
}

Evaluations::Outcome Evaluations::run(Which which) {
  Outcome outcome;
  bool any = false;
  for (const Evaluation& e : evaluations_) {
    if (!wanted(e, which)) continue;
    if (!std::exchange(any, true)) attempt_.enter("evaluate");
    base::Stopwatch watch;
    eval::Result result = evaluate(e);
    if (result.interrupted) {
      log::line("eval={} step={} interrupted: made again when the run goes on", e.name,
                attempt_.state.step);
      outcome.complete = false;
      break;
    }
    for (const auto& [name, value] : result.values)
      if (!std::isfinite(value)) {
        outcome.problem = fmt::format(
            "evaluator {}: {} is not finite at step {} (guard.nonfinite is about training): its "
            "data, or weights that have grown too far",
            e.name, name, attempt_.state.step);
        return outcome;
      }
    take(e, which, std::move(result), watch.seconds());
  }
  if (any) {
    attempt_.charge(&Progress::Times::evaluation);
    attempt_.enter("train");
  }
  return outcome;
}

eval::Result Evaluations::evaluate(const Evaluation& e) {
  device::Range range(("evaluate " + e.name).c_str());
  step::Engine& engine = attempt_.engine();
  const step::Weights weights =
      e.options.weights == eval::Weights::ema ? step::Weights::ema : step::Weights::raw;
  return e.evaluator->run(
      {.world = attempt_.world(),
       .dataset = e.dataset,
       .loader = feed_.options(),
       .batch = engine.geometry().micro_batch,
       .pass = e.pass,
       .forward = [&](const auto& prepare,
                      const auto& run) { engine.forward(*e.pass, prepare, run, weights); },
       .interrupted = must_stop_});
}

void Evaluations::take(const Evaluation& e, Which which, eval::Result result, double seconds) {
  RunState& state = attempt_.state;
  bool best = false;
  if (which != Which::at_start) {
    best = state.best.update(e.name, result.values, state.step);
    state.patience.update(e.name, result.values, state.step);
  }
  found_best_ |= best;
  std::string values;
  for (const auto& [name, value] : result.values) values += fmt::format(" {}={:.6g}", name, value);
  log::line("eval={} step={}{} {}={} s={:.1f}{}", e.name, state.step, values, result.counted,
            result.examples, seconds, best ? " best=yes" : "");
  result.values.emplace_back("eval_s", seconds);
  files_.metrics().eval_row(e.name, state.step, result.values);
  made_up_ |= which == Which::missing;
  feed_.agree_on_evaluation();
}

std::string Evaluations::describe() const {
  std::string text;
  for (const Evaluation& e : evaluations_)
    text += fmt::format("  {} every {} ({})", e.name, e.times.every, e.dataset.size());
  return text;
}

}  // namespace train
