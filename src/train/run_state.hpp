// SPDX-License-Identifier: Apache-2.0
// The state of a run beside its tensors: what checkpoints hold, in one list of members, and how a
// run goes on from it. A new member is a member here and a line in members().
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "train/member_list.hpp"
#include "train/progress.hpp"
#include "train/recipe.hpp"
#include "train/tracker.hpp"

namespace train {

struct RunState {
  int64_t step = 0;  // of the last update
  Progress progress;
  Tracker best, patience;                               // of checkpoint.best and [early_stop]
  double uptime_s = 0;                                  // of the attempt that saves
  int64_t global_batch = 0;                             // of that attempt; 0: not known
  std::optional<optim::Engine::ScaleState> loss_scale;  // of fp16
  std::string origin = "random";           // what step 0 or a branch began from; stays with the run
  std::string data;                        // sizes and fingerprints of the training data
  std::string resume;                      // checkpoint.resume of the attempt that saves
  std::string deck, name, notes, version;  // of the attempt that saves

  RunState() = default;
  // The state of a new run.
  RunState(const Recipe& recipe, const config::Deck& resolved);

  void members(MemberList& list);
  // Returns what a checkpoint holds, with these tensors.
  checkpoint::State to_checkpoint(std::vector<shard::TensorSlice> tensors);
  // Returns the state that a checkpoint holds, for a run that tracks what this one does.
  RunState read(const checkpoint::State& from) const;

  // Goes on from the state that was saved. What this attempt has spent on its start so far stays
  // counted; `cores`: of this attempt. The stream of examples goes on where it was, also if the
  // batch has another size now.
  void continue_from(const RunState& saved, double cores);
  // Goes back to the state that was saved, because of `bad_step`, and leaves out the examples since
  // then. What was spent stays counted. Returns the number of examples left out.
  int64_t go_back(const RunState& saved, int64_t bad_step);

  int64_t examples_seen(int64_t at_step) const {
    return at_step * global_batch + progress.seen_offset;
  }
};

}  // namespace train
