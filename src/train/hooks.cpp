// SPDX-License-Identifier: Apache-2.0
// Runs the deck's hooks when something happens in the run.
#include "job/hooks.hpp"

#include <filesystem>
#include <optional>

#include "train/attempt.hpp"
#include "train/observers.hpp"

namespace train {
namespace {

using job::HookEvent;

class HookObserver : public Observer {
 public:
  HookObserver(const Attempt& attempt, job::Hooks& hooks)
      : attempt_(attempt), hooks_(hooks), every_(attempt.period(attempt.recipe.hooks.every)) {}

  void started() override {
    hooks_.know({{"total", attempt_.total},
                 {"attempt", attempt_.state.progress.attempts},
                 {"ranks", int64_t(attempt_.world().size())}});
    tell(HookEvent::start, {{"step", attempt_.state.step}});
  }

  void settled(int64_t step, const step::StepReport& report, bool /*skipped*/) override {
    loss_ = report.loss();
    if (every_ > 0 && step % every_ == 0) due_step_ = step;
  }

  void evaluated(int64_t step, const Evaluated& e) override {
    tell(
        HookEvent::evaluation,
        {{"step", step}, {"eval", e.name}, {"best", int64_t(e.best)}, {"values", e.result.values}});
  }

  void saved(const checkpoint::Saved& saved) override {
    const std::filesystem::path file = attempt_.directory->checkpoints() + "/" + saved.file;
    tell(HookEvent::checkpoint,
         {{"step", saved.step},
          {"file", std::filesystem::absolute(file).lexically_normal().string()},
          {"bytes", saved.bytes},
          {"best", int64_t(saved.best)}});
  }

  void step_ends(int64_t /*step*/) override {
    if (!due_step_) return;
    tell(HookEvent::step, with_loss({{"step", *due_step_}}));
    due_step_.reset();
  }

  void went_back(int64_t /*step*/) override { due_step_.reset(); }

  void ended(const Ending& ending) override {
    using base::Exit;
    if (ending.code != Exit::finished && ending.code != Exit::stopped &&
        ending.code != Exit::requeue)
      return;  // job/failure.cpp reports errors
    attempt_.enter("hooks");
    hooks_.end(attempt_.world(), ending.code, ending.reason,
               with_loss({{"step", attempt_.state.step}}));
  }

  std::string wants_stop() const override { return hooks_.wants_stop(); }

 private:
  void tell(HookEvent what, job::HookFacts facts) {
    if (attempt_.leads()) hooks_.tell(what, std::move(facts));
  }
  job::HookFacts with_loss(job::HookFacts facts) const {
    if (loss_) facts.push_back({"loss", *loss_});
    return facts;
  }

  const Attempt& attempt_;
  job::Hooks& hooks_;
  const int64_t every_;  // steps between two step hooks; 0: there are none
  std::optional<double> loss_;
  std::optional<int64_t> due_step_;  // its hook runs at the end of the step
};

std::unique_ptr<Observer> make_hooks(const Attempt& attempt) {
  job::Hooks* hooks = job::Hooks::current();
  if (!hooks || !attempt.recipe.hooks.any()) return nullptr;
  return std::make_unique<HookObserver>(attempt, *hooks);
}

}  // namespace

ObserverRow hooks_row() { return {.name = "hooks", .make = make_hooks}; }

}  // namespace train
