// SPDX-License-Identifier: Apache-2.0
// The state of a run, except its tensors. Checkpoints hold it as one list of members. A new
// member needs a declaration here and a line in members().
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "train/epoch_means.hpp"
#include "train/loss_digest.hpp"
#include "train/member_list.hpp"
#include "train/progress.hpp"
#include "train/recipe.hpp"
#include "train/tracker.hpp"

namespace train {

// There are many members because each number that a run continues from has one.
struct RunState {
  int64_t step = 0;  // step of the last update
  Progress progress;
  Tracker best, patience;    // for checkpoint.best and [early_stop]
  Threshold threshold;       // for checkpoint.passes
  WatchedMeasures watched;   // for eval.NAME.when
  EpochMeans epoch_means;    // of the epoch under way, if log.epoch_means
  LossDigest losses;         // of the steps whose reports are known
  double uptime_s = 0;       // uptime of the attempt that saves
  int64_t global_batch = 0;  // batch size of that attempt; 0: not known
  std::optional<optim::Optimizer::ScaleState> loss_scale;  // fp16 only
  std::string origin = "random";           // start of step 0 or of a branch; stays with the run
  std::string data;                        // sizes and fingerprints of the training data
  std::string classes;                     // their names, a line each; "" = not known
  std::string tokenizers;                  // name and hash of those with a file, a line each
  std::string resume;                      // checkpoint.resume of the attempt that saves
  bool restart_data = false;               // checkpoint.restart_data of the attempt that saves
  bool knows_position = true;              // false: read from a file without a position of the data
  std::string deck, name, notes, version;  // set by the attempt that saves

  RunState() = default;
  // The state of a new run.
  RunState(const Recipe& recipe, const config::Deck& resolved);

  void members(MemberList& list);
  // Returns the content of a checkpoint with these tensors.
  checkpoint::State to_checkpoint(std::vector<shard::TensorSlice> tensors);
  // Returns the state that a checkpoint holds. The checkpoint must track what this run tracks.
  RunState read(const checkpoint::State& from) const;

  // Continues from a saved state. The time that this attempt has spent on its start stays counted;
  // `cores` are the cores of this attempt. The stream of examples continues at its position, even
  // if the batch size has changed, or starts over.
  void continue_from(const RunState& saved, double cores);
  // True if the data start over when the run continues from this state: the deck asks for it, and
  // the attempt that saved had not done it.
  bool begins_data_anew(const RunState& saved) const { return restart_data && !saved.restart_data; }
  // Returns the position of the next example in the stream.
  int64_t position() const { return step * global_batch + progress.stream_offset; }
  // Goes back to a saved state because of `bad_step`, and leaves out the examples since then. Time
  // that was spent stays counted. Returns the number of examples left out.
  int64_t go_back(const RunState& saved, int64_t bad_step);

  int64_t examples_seen(int64_t at_step) const {
    return at_step * global_batch + progress.seen_offset;
  }
};

}  // namespace train
