// SPDX-License-Identifier: Apache-2.0
// The files that a run keeps in its directory beside checkpoints: metrics, the log of samples, the
// resolved deck. Removed files are made again as long as the directory is this job's.
#pragma once

#include <memory>

#include "records/metrics.hpp"
#include "records/sample_log.hpp"
#include "train/attempt.hpp"

namespace train {

class RunFiles {
 public:
  explicit RunFiles(Attempt& attempt) : attempt_(attempt) {}
  ~RunFiles();  // tries once more to write what waits for room, and names what is lost

  // Opens the metrics at the run's current step. `after_kill`: the previous attempt was killed.
  // All ranks call.
  void open_metrics(bool after_kill);
  // Opens the log of samples if the deck asks for it. All ranks call.
  void open_sample_log();
  records::Metrics& metrics() const { return *metrics_; }
  records::SampleLog* sample_log() const { return sample_log_.get(); }  // null: none is kept
  // Writes the resolved deck at rank 0.
  void write_deck() const;

  // Checks that the directory still is this job's and makes removed files again. `now`: checks even
  // if the last check was recent.
  void watch(bool now);
  // Writes the metrics to disk, and what waits for room there. It checks the directory first,
  // because files are made again only in a directory that is this job's.
  void flush();

 private:
  records::Metrics::Row about_attempt() const;
  Attempt& attempt_;
  std::unique_ptr<records::Metrics> metrics_;
  std::unique_ptr<records::SampleLog> sample_log_;
};

}  // namespace train
