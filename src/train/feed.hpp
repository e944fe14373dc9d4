// SPDX-License-Identifier: Apache-2.0
// The examples of training on their way to the engine: the loader, what it replaces, and the log of
// samples.
#pragma once

#include <memory>

#include "base/per_step.hpp"
#include "data/stream/loader.hpp"
#include "records/bad_samples.hpp"
#include "train/attempt.hpp"
#include "train/run_files.hpp"

namespace train {

class Feed {
 public:
  Feed(Attempt& attempt, RunFiles& files) : attempt_(attempt), files_(files) {}

  // Opens the list of broken samples: of training, and of what evaluators read. All ranks call.
  void open_bad_samples();
  // Opens the loader at the step of the run, again after a rewind. All ranks call.
  void open_loader();

  // Returns the examples of the next pass of the step.
  models::HostBatch next(int64_t step);
  // All ranks agree on what was replaced for the step, whose passes are submitted, or by an
  // evaluator.
  void agree_on_step(int64_t step);
  void agree_on_evaluation();
  // Returns the examples that were replaced in a step: call it before two more steps are submitted.
  int64_t replaced(int64_t step) const { return replaced_[step]; }

  const data::LoaderOptions& options() const { return options_; }
  int64_t broken_samples() const { return bad_samples_->known(); }

 private:
  Attempt& attempt_;
  RunFiles& files_;
  std::unique_ptr<records::BadSamples> bad_samples_;
  data::LoaderOptions options_;
  std::unique_ptr<data::Loader> loader_;
  base::PerStep<int64_t> replaced_;
  bool first_batch_logged_ = false;
};

// Logs the range of every field of a batch: what went wrong in preprocessing shows here first.
void describe_batch(const data::Batch& batch,
                    const std::map<std::string, models::FeatureSpec>& features);

}  // namespace train
