// SPDX-License-Identifier: Apache-2.0
// The run: sets up its parts, continues from the newest checkpoint, and loops. The parts observe
// and propose; only the loop decides. The parts in their order:
//   attempt        job, run state and counters, which all parts share
//   run_files      metrics, log of samples, deck
//   feed           examples on their way to the engine
//   saves          checkpoints
//   continuation   where the run goes on from
//   evaluations    evaluators and what follows from their values
//   guard          whether a step is kept
//   slow_ranks     which rank makes the others wait
//   run_log        rows and lines about steps
#pragma once

#include <memory>

#include "train/continuation.hpp"
#include "train/evaluations.hpp"
#include "train/guard.hpp"
#include "train/run_log.hpp"
#include "train/saves.hpp"
#include "train/slow_ranks.hpp"

namespace train {

class Trainer {
 public:
  // `directory` is null if it must still be made. Refuses whatever can be refused before the run
  // begins. All ranks call.
  Trainer(comm::Session& session, const Recipe& recipe, config::Deck& deck,
          std::unique_ptr<job::RunDirectory> directory, const Start& start);
  ~Trainer();

  // Trains to the end of the run (Exit::finished), or until a request to stop (stops.hpp). A
  // stopped run leaves a checkpoint and returns Exit::requeue or Exit::stopped.
  // Error(Exit::nonfinite) if guard.nonfinite ends the run.
  base::Exit run();

 private:
  base::Exit go();
  void tell_ending(base::Exit code, const std::string& reason);
  void tell_failure(const base::Error& error);
  void start();
  void loop();
  // Processes the reports of the submitted steps, except the last `ahead`. Returns false if the run
  // went back to a checkpoint.
  bool settle(int64_t ahead);
  bool accept(const step::StepReport& report);
  void rewind(const std::string& problem);
  void evaluate(Which which);
  bool save_due() const;
  void save();
  void finish_saves();
  [[noreturn]] void give_up(const std::string& error);
  job::StopReason stop_request();
  void stop_while_starting();  // throws AskedToStop
  job::Outlook outlook() const;
  job::Outlook first_outlook() const;
  base::Exit leave();

  Job job_;
  Attempt attempt_;
  RunFiles files_;
  Feed feed_;
  Guard guard_;
  SlowRanks slow_ranks_;
  RunLog log_;
  std::unique_ptr<job::Stops> stops_;
  std::unique_ptr<Evaluations> evaluations_;
  std::unique_ptr<Saves> saves_;  // set once the run has a directory
  std::unique_ptr<Continuation> continuation_;
  job::StopReason stop_ = job::StopReason::none;
  bool early_ = false;    // early_stop ends the run
  bool complete_ = true;  // no evaluation was cut off
};

}  // namespace train
