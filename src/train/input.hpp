// SPDX-License-Identifier: Apache-2.0
// Stages and opens the data set or mixture that training reads, and plans the examples of each rank
// in each batch.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "comm/together.hpp"
#include "data/stream/loader.hpp"
#include "train/recipe.hpp"

namespace train {

// Returns the names of the data sets that these evaluations read.
std::set<std::string> data_sets_of(const std::map<std::string, eval::EvalOptions>& evaluations);

// Copies to loader.stage_dir the files of these data sets that can be staged. One process of
// each node copies; all ranks call. Returns the directory on this node for data::OpenContext, or ""
// if nothing is staged. All ranks throw the same Error. All ranks call `poll` meanwhile
// (comm::beside).
std::string stage_data(
    comm::Session& session, const Recipe& recipe, const std::set<std::string>& names,
    const comm::Poll& poll = [] {});

// Opens train.data or train.mixture. Error(Exit::data) for an empty data set.
std::unique_ptr<data::Mixture> open_training_data(const Recipe& recipe,
                                                  const data::Tokenizers& tokenizers,
                                                  const data::OpenContext& context);

// Lets each rank find out its share of what opening large sets needs to know, for
// OpenContext::shares. All ranks call.
std::map<std::string, std::vector<std::string>> list_shares(comm::Comm& world, const Recipe& recipe,
                                                            const std::set<std::string>& names,
                                                            const data::OpenContext& context,
                                                            const comm::Poll& poll);

// Names the data of a run: sizes and fingerprints. earlier: Source::earlier_fingerprint.
std::string data_text(const data::Mixture& data, bool earlier = false);

// Checks that all ranks see the same samples in each of these sets; a rank may have read a stale
// node-local copy. All ranks call. Error(Exit::data) on all ranks names the set, the ranks and
// their sizes.
void agree_on_data(comm::Comm& world, const std::vector<const data::Dataset*>& sets);

// Plans this rank's examples of every pass from `first_step` (0 = from the beginning) to
// `last_step`. The loader's batch number is step * accumulation + pass, with steps counted from 0.
// `offset` is the position of step 0 in the stream (progress.hpp).
data::LoaderPlan training_plan(const step::Geometry& geometry, const comm::Mesh& mesh,
                               int64_t first_step, int64_t last_step, int64_t offset = 0);

}  // namespace train
