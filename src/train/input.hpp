// SPDX-License-Identifier: Apache-2.0
// What training reads: the data set or the mixture that the deck names, staged and opened, and
// which of its examples each rank takes in each batch.
#pragma once

#include <memory>
#include <vector>

#include "comm/together.hpp"
#include "data/stream/loader.hpp"
#include "train/recipe.hpp"

namespace train {

// Copies to loader.stage_dir whatever the data sets in use can have copied: one process of each
// node works, all ranks call. Returns what data::OpenContext needs (the directory on this node), ""
// if nothing is staged. Errors are agreed. `poll`: called by all ranks meanwhile
// (comm::beside).
std::string stage_data(
    comm::Session& session, const Recipe& recipe, const comm::Poll& poll = [] {});

// train.data or train.mixture. Error(Exit::data) for an empty data set.
std::unique_ptr<data::Mixture> open_training_data(const Recipe& recipe,
                                                  const data::Tokenizers& tokenizers,
                                                  const data::OpenContext& context);

// Do all ranks see the same samples in every one of these sets (some may have read stale node-local
// copies)? All ranks call; Error(Exit::data), on all, names the set, the ranks and their sizes.
void agree_on_data(comm::Comm& world, const std::vector<const data::Dataset*>& sets);

// This rank's examples of every pass from `first_step` (0 = from the beginning) to `last_step`; the
// loader's batch number is step * accumulation + pass, steps counted from 0. `offset`: where step 0
// would lie in the stream (progress.hpp).
data::LoaderPlan training_plan(const step::Geometry& geometry, const comm::Mesh& mesh,
                               int64_t first_step, int64_t last_step, int64_t offset = 0);

}  // namespace train
