// SPDX-License-Identifier: Apache-2.0
// The journals of a run's evaluations (eval/journal.hpp): where they are, what they depend on, and
// when they are removed.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "train/attempt.hpp"
#include "train/run_files.hpp"

namespace train {

struct Evaluation;

// Returns a hash of the weights, or of their average, that the engine evaluates. All ranks call.
std::string weights_digest(const Job& job, step::Weights weights);
// Names weights (of weights_digest), evaluator, data, model, precision and program. The number of
// ranks and the batch do not count.
eval::Journal::Identity identity_of(const Evaluation& evaluation, const Job& job,
                                    const std::string& weights);

// A killed run goes on from its newest checkpoint and makes all evaluations since then again. So
// the journals of the newest evaluated step stay until a checkpoint holds this step.
class Journals {
 public:
  Journals(Attempt& attempt, RunFiles& files) : attempt_(attempt), files_(files) {}

  // Returns the folder for files of an evaluation at the run's step.
  std::string folder_of(const std::string& evaluation) const;
  // Begins the evaluations of a step, whose weights may differ from those before.
  void begin();
  // Opens the journal of an evaluation; null if the run keeps none. All ranks call.
  std::unique_ptr<eval::Journal> open(const Evaluation& evaluation, step::Weights weights);
  // Ends the journal of an evaluation whose results are written. All ranks call.
  void finish(const std::string& evaluation, eval::Journal& journal);
  // Removes the journals of evaluations that are done. `saved_step`: step of the newest checkpoint.
  void drop(int64_t saved_step);

 private:
  void sweep();
  void remove_done();

  Attempt& attempt_;
  RunFiles& files_;
  std::map<step::Weights, std::string> digests_;
  std::vector<std::string> done_;  // folders of evaluations at step_
  int64_t step_ = -1;
  bool usable_ = true, swept_ = false;  // usable_: false after a folder could not be used
};

}  // namespace train
