// SPDX-License-Identifier: Apache-2.0
// The list of broken samples of a run. The ranks agree on what their loaders replaced.
// RUN/logs/bad_samples.txt names each key once over all ranks, epochs and attempts:
//   data set <tab> key <tab> what is wrong
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "comm/comm.hpp"
#include "data/bad_sample.hpp"
#include "io/waiting.hpp"

namespace records {

class BadSamples {
 public:
  // All ranks call with equal arguments. `sizes` holds the number of samples by data set. An
  // existing list is continued. With path "" no file is read or written.
  BadSamples(comm::Comm& world, const std::string& path, double max_fraction,
             std::map<std::string, int64_t> sizes);

  // Returns the log that the loaders of this rank write to.
  const std::shared_ptr<data::BadSampleLog>& log() const { return log_; }

  // Returns how many examples of delivered batches were replaced on all ranks since the last call,
  // and adds their keys to the list. All ranks call at the same places. Error(Exit::data) on all
  // ranks if a data set has more broken samples than max_fraction of its size.
  int64_t agree();

  int64_t known() const;  // keys in the list

 private:
  bool is_entry(const std::string& line) const;
  bool add(const std::string& line);
  void check() const;

  comm::Comm& world_;
  std::string path_;
  io::WaitingLines lines_;
  double max_fraction_;
  std::map<std::string, int64_t> sizes_;
  std::map<std::string, std::set<std::string>> known_;  // keys by data set; equal on every rank
  std::shared_ptr<data::BadSampleLog> log_ = std::make_shared<data::BadSampleLog>();
  int64_t warned_ = 0;
};

}  // namespace records
