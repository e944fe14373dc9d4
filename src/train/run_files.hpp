// SPDX-License-Identifier: Apache-2.0
// The files that a run keeps in its directory beside checkpoints: metrics, the log of samples, the
// resolved deck. What is removed meanwhile is made again, as long as the directory is this job's.
#pragma once

#include <memory>

#include "records/metrics.hpp"
#include "records/sample_log.hpp"
#include "train/attempt.hpp"

namespace train {

class RunFiles {
 public:
  explicit RunFiles(Attempt& attempt) : attempt_(attempt) {}

  // Opens the metrics at the step of the run; `after_kill`: the attempt before was killed. All
  // ranks call.
  void open_metrics(bool after_kill);
  // Opens the log of samples, where the deck asks for it. All ranks call.
  void open_sample_log();
  records::Metrics& metrics() const { return *metrics_; }
  records::SampleLog* sample_log() const { return sample_log_.get(); }  // null: none is kept
  // Rank 0. `or_warn`: the run can do without.
  void write_deck(bool or_warn) const;

  // Looks whether the directory is still this job's and makes again what was removed of it; `now`:
  // looks in any case.
  void watch(bool now);
  // Metrics are on disk when it returns. The directory is looked at first: files are made again
  // only in one that is this job's.
  void flush();

 private:
  Attempt& attempt_;
  std::unique_ptr<records::Metrics> metrics_;
  std::unique_ptr<records::SampleLog> sample_log_;
};

}  // namespace train
