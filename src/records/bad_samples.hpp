// SPDX-License-Identifier: Apache-2.0
// The list of broken samples of a run: what the loaders of all ranks replaced, agreed over the
// ranks, each key named once in RUN/logs/bad_samples.txt over all ranks, epochs and attempts:
//   data set <tab> key <tab> what is wrong
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "comm/comm.hpp"
#include "data/bad_sample.hpp"

namespace records {

class BadSamples {
 public:
  // All ranks call, and have the same arguments. `sizes`: of the data sets, by name. A list that is
  // there is continued.
  BadSamples(comm::Comm& world, const std::string& path, double max_fraction,
             std::map<std::string, int64_t> sizes);

  // For the loaders of this rank.
  const std::shared_ptr<data::BadSampleLog>& log() const { return log_; }

  // All ranks call at the same places. How many examples of delivered batches were replaced on all
  // ranks since the last call; adds their keys to the list. Error(Exit::data) on all ranks if a
  // data set has more broken samples than max_fraction of its size.
  int64_t agree();

  int64_t known() const;  // keys in the list

 private:
  bool is_entry(const std::string& line) const;
  bool add(const std::string& line);
  void check() const;

  comm::Comm& world_;
  std::string path_;
  double max_fraction_;
  std::map<std::string, int64_t> sizes_;
  std::map<std::string, std::set<std::string>> known_;  // keys by data set; the same on every rank
  std::shared_ptr<data::BadSampleLog> log_ = std::make_shared<data::BadSampleLog>();
  int64_t warned_ = 0;
};

}  // namespace records
