// SPDX-License-Identifier: Apache-2.0
#include "train/evaluations.hpp"

#include <algorithm>
#include <cmath>
#include <typeinfo>
#include <utility>

#include "base/log_components.hpp"
#include "base/span.hpp"
#include "train/evaluation_journal.hpp"
#include "train/phases.hpp"

namespace train {
namespace log = base::log;

namespace {

step::Weights weights_of(const Evaluation& e) {
  return e.options.weights == eval::Weights::ema ? step::Weights::ema : step::Weights::raw;
}

// Does the work of an evaluator. A deck may have several of a kind, so errors begin with the table.
template <class Work>
auto in_table(const Job& job, const std::string& name, const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const base::Error& e) {
    if (typeid(e) != typeid(base::Error)) throw;  // others name their subject
    const auto& tables = job.recipe().evals;
    const std::string table = tables.contains(name) ? name : name.substr(0, name.rfind("_ema"));
    throw base::Error(e.code(), fmt::format("eval.{}: {}", table, e.what()), e.agreed(),
                      e.teller());
  }
}

}  // namespace

Evaluation make_evaluation(const Job& job, const std::string& name,
                           const eval::EvalOptions& options, step::PassId pass,
                           const EvaluationTimes& times) {
  Evaluation made;
  made.name = name;
  made.pass = pass;
  made.times = times;
  made.options = options;
  made.open(job);
  made.examples = made.dataset->size();
  in_table(job, name, [&] {
    made.evaluator->check(*made.dataset);
    for (const auto& [key, set] : made.further) made.evaluator->check(*set);
  });
  return made;
}

std::set<std::string> Evaluation::data_sets() const {
  std::set<std::string> names;
  for (const auto& [key, set] : eval::data_sets_of(options)) names.insert(set);
  return names;
}

void Evaluation::open(const Job& job) {
  evaluator = eval::make_evaluator(options);
  dataset = &job.evaluated(options.data);
  for (const auto& [key, set] : eval::data_sets_of(options))
    if (key != "data") further[key] = &job.evaluated(set);
}

void Evaluation::close() {
  evaluator.reset();
  dataset = nullptr;
  further.clear();
}

eval::Result run_evaluation(const Evaluation& evaluation, const Job& job,
                            const data::LoaderOptions& loader, step::Weights weights,
                            const std::function<bool()>& must_stop, const std::string& folder,
                            eval::Journal* journal) {
  base::Span span(base::SpanName::of(evaluation.name), base::SpanKind::evaluate);
  step::Engine& engine = job.engine();
  auto evaluate = [&] {
    return evaluation.evaluator->run(
        {.world = *job.mesh().world,
         .dataset = *evaluation.dataset,
         .loader = loader,
         .batch = engine.geometry().micro_batch,
         .pass = &engine.pass(evaluation.pass),
         .forward = [&](const auto& batch,
                        const auto& run) { engine.forward(evaluation.pass, batch, run, weights); },
         .interrupted = must_stop,
         .further = evaluation.further,
         .folder = folder,
         .journal = journal,
         .threads = job.threads(),
         .ledger = &engine.ledger()});
  };
  return in_table(job, evaluation.name, evaluate);
}

std::string nonfinite_problem(const std::string& name, int64_t step, const eval::Result& result) {
  for (const auto& [value_name, value] : result.values)
    if (!std::isfinite(value))
      return fmt::format(
          "evaluator {}: {} is not finite at step {} (guard.nonfinite applies to training "
          "only): check its data; the weights may have diverged",
          name, value_name, step);
  return "";
}

std::string evaluation_line(const std::string& name, int64_t step, const eval::Result& result,
                            double seconds) {
  std::string values;
  for (const auto& [value_name, value] : result.values)
    values += fmt::format(" {}={:.6g}", value_name, value);
  return fmt::format("eval={} step={}{} {}={} s={:.1f}", name, step, values, result.counted,
                     result.examples, seconds);
}

Evaluations::Evaluations(Attempt& attempt, RunFiles& files, Feed& feed,
                         std::function<bool()> must_stop)
    : attempt_(attempt),
      files_(files),
      feed_(feed),
      must_stop_(std::move(must_stop)),
      journals_(attempt, files) {
  for (const auto& [name, options] : attempt.recipe.evaluations()) {
    EvaluationTimes times{attempt.period(options.every), options.at_start, options.at_end};
    if (attempt.recipe.train.test_every > 0)
      times.tests = [&attempt](int64_t step) { return attempt.test_follows(step); };
    if (attempt.start.trial_steps > 0) times = {0, false, attempt.start.trial_evaluates};
    const step::PassId pass{evaluations_.size()};
    evaluations_.push_back(make_evaluation(attempt.job, name, options, pass, times));
  }
  std::set<std::string> kept;
  for (Evaluation& e : evaluations_)
    if (e.times.at_start)
      kept.merge(e.data_sets());
    else
      e.close();
  attempt.job.close_evaluated(kept);
}

bool Evaluations::open(Evaluation& e) {
  struct MustStop {};
  if (e.evaluator) return true;
  base::Stopwatch watch;
  try {
    attempt_.job.open_evaluated(e.data_sets(), [this] {
      if (must_stop_()) throw MustStop();
    });
  } catch (const MustStop&) {
    return false;
  }
  e.open(attempt_.job);
  log::debug(log::Component::eval, "{}: built in {:.3f} s, reads data.{}", e.name, watch.seconds(),
             e.dataset->name());
  return true;
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
  if (!is_wanted(e.times, which, step, attempt_.total, last, has_values)) return false;
  if (which == Which::at_start || (last && e.times.at_end)) return true;
  const std::string problem = attempt_.state.watched.problem(e.options.when);
  if (!problem.empty() && which == Which::due)
    log::info(log::Component::eval, "eval={} step={} left out: {}", e.name, step, problem);
  return problem.empty();
}

Evaluations::Outcome Evaluations::run(Which which) {
  Outcome outcome;
  bool any = false;
  journals_.begin();
  for (Evaluation& e : evaluations_) {
    if (!wanted(e, which)) continue;
    if (!std::exchange(any, true)) attempt_.enter("evaluate");
    if (!open(e)) {
      log::line("eval={} step={} interrupted: made when the run goes on", e.name,
                attempt_.state.step);
      outcome.complete = false;
      break;
    }
    base::Stopwatch watch;
    log::debug(log::Component::eval, "{} begins: {} examples", e.name, e.examples);
    const std::unique_ptr<eval::Journal> journal = journals_.open(e, weights_of(e));
    eval::Result result =
        run_evaluation(e, attempt_.job, feed_.options(), weights_of(e), must_stop_,
                       attempt_.leads() ? journals_.folder_of(e.name) : "", journal.get());
    if (result.interrupted) {
      log::line("eval={} step={} interrupted: {} when the run goes on", e.name, attempt_.state.step,
                journal ? "continued" : "made again");
      outcome.complete = false;
      break;
    }
    outcome.problem = nonfinite_problem(e.name, attempt_.state.step, result);
    if (!outcome.problem.empty()) return outcome;
    take(e, which, std::move(result), watch.seconds());
    if (journal) journals_.finish(e.name, *journal);
  }
  if (any) {
    attempt_.charge(&Progress::Times::evaluation);
    attempt_.enter("train");
  }
  return outcome;
}

void Evaluations::take(const Evaluation& e, Which which, eval::Result result, double seconds) {
  RunState& state = attempt_.state;
  bool best = false;
  if (which != Which::at_start) {
    best = state.best.update(e.name, result.values, state.step);
    state.patience.update(e.name, result.values, state.step);
  }
  found_best_ |= best;
  const bool passed = which != Which::at_start && state.threshold.update(e.name, result.values);
  passed_ |= passed;
  log::info(log::Component::eval, "{}{}{}", evaluation_line(e.name, state.step, result, seconds),
            best ? " best=yes" : "", passed ? " passes=yes" : "");
  result.values.emplace_back("eval_s", seconds);
  if (const int64_t every = attempt_.recipe.train.test_every; every > 0 && state.step > 0)
    result.values.emplace_back("phase",
                               double(phase_of_test(attempt_.epochs_ended(state.step), every)));
  files_.metrics().eval_row(e.name, state.step, result.values);
  attempt_.observers.tell(&Observer::evaluated, state.step,
                          Observer::Evaluated{e.name, e.options, result, seconds, best});
  made_up_ |= which == Which::missing;
  feed_.agree_on_evaluation();
}

std::string in_own_type(const Evaluation& evaluation) {
  const eval::Compute compute = evaluation.options.compute;
  if (compute == eval::Compute::run) return "";
  return fmt::format(" in {}", base::name_of(eval::kComputeNames, compute));
}

std::string Evaluations::describe() const {
  std::string text;
  for (const Evaluation& e : evaluations_)
    text += fmt::format("  {} {} ({})", e.name, e.times.describe() + in_own_type(e), e.examples);
  return text;
}

}  // namespace train
