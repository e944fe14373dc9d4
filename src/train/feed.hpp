// SPDX-License-Identifier: Apache-2.0
// Brings training examples to the engine: owns the loader, the list of replaced samples and the log
// of samples.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "base/log_limits.hpp"
#include "base/per_step.hpp"
#include "data/stream/loader.hpp"
#include "records/bad_samples.hpp"
#include "train/attempt.hpp"
#include "train/run_files.hpp"

namespace train {

class Feed {
 public:
  Feed(Attempt& attempt, RunFiles& files) : attempt_(attempt), files_(files) {}

  // Opens the list of broken samples for training and evaluation data. All ranks call.
  void open_bad_samples();
  // Lets the loader read ahead from a probable position while weights are made or read. Call it
  // after open_bad_samples.
  void read_ahead(int64_t step, int64_t stream_offset);
  // Opens the loader at the run's current step, also after a rewind. Keeps a loader that reads
  // ahead from there. All ranks call.
  void open_loader();

  // Returns the examples of the next pass of the step.
  models::HostBatch next(int64_t step);
  // Agree over all ranks on the samples that were replaced: for a step whose passes are submitted,
  // or for an evaluator.
  void agree_on_step(int64_t step);
  void agree_on_evaluation();
  // Returns the number of examples replaced in a step. Call it before two more steps are submitted.
  int64_t replaced(int64_t step) const { return replaced_[step]; }

  const data::LoaderOptions& options() const { return options_; }
  int64_t broken_samples() const { return bad_samples_->known(); }

 private:
  Attempt& attempt_;
  RunFiles& files_;
  std::unique_ptr<records::BadSamples> bad_samples_;
  data::LoaderOptions options_;
  std::unique_ptr<data::Loader> loader_;
  // Step and stream offset of a loader that has delivered nothing.
  std::optional<std::pair<int64_t, int64_t>> ahead_;
  base::PerStep<int64_t> replaced_;
  base::log::FirstN described_{1};
  base::log::EveryN looked_at_{100};
};

// Logs the range of every field of a batch, which shows errors of preprocessing first.
void describe_batch(const data::Batch& batch,
                    const std::map<std::string, models::FeatureSpec>& features);

}  // namespace train
