// SPDX-License-Identifier: Apache-2.0
// Finds and loads the weights that a mode runs on: a checkpoint, a run's newest one, or a file of
// another program.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/restore.hpp"
#include "train/job.hpp"

namespace train {

// Weights to run on: checkpoints, or a file of initial weights.
struct WeightSource {
  std::string path;
  std::vector<checkpoint::Candidate> files;  // the first valid one counts; none: initial weights

  bool is_checkpoint() const { return !files.empty(); }
};

// Lists what `key` of the deck names; "" or [] is the run directory. All ranks call and agree.
// Opens each file of initial weights, and the header of each checkpoint file, so that a wrong name
// ends the job before any work. `every_checkpoint`: of a run directory all files, the oldest first.
std::vector<WeightSource> weight_sources(comm::Comm& world, const Recipe& recipe,
                                         const std::string& key,
                                         const std::vector<std::string>& from,
                                         bool every_checkpoint = false);

// Loads weights, or their average, into the job's engine and returns their step; files of initial
// weights have step 0. A run directory is narrowed to the file that was loaded. Error(Exit::config)
// if the job's sets have other classes than the checkpoint's run, or its tokenizers other files.
// All ranks call and agree, and call `poll` meanwhile.
int64_t load_weights(Job& job, WeightSource& source, bool average, const comm::Poll& poll);

}  // namespace train
