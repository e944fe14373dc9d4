// SPDX-License-Identifier: Apache-2.0
// Continues a run from a checkpoint.
#pragma once

#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "checkpoint/catalogue.hpp"
#include "comm/comm.hpp"
#include "comm/together.hpp"

namespace checkpoint {

struct Restored {
  std::string file, path;  // `file` is the name without the directory
  int64_t step = 0;
  int64_t bytes = 0;  // of tensors, read by this rank
  double seconds = 0;
  std::vector<std::string> refused;  // newer files with the reason, one line each
};

// Fills `target` from the newest valid file: step, numbers, texts and the memory of all its
// tensors' parts, whether they write or not. Parts on a device are filled by way of a host copy.
// The file must hold exactly the tensors of target.tensors. Only an average of the weights
// (kAverageRoot) may differ: a missing one is filled with the weights, an unwanted one is ignored.
// options.resume decides:
//   auto    returns nothing if there is no checkpoint
//   must    throws if there is no checkpoint
//   never   returns nothing
//   STEP    restores that step or throws
//   -N      restores the N-th newest file or throws; damaged files count
// A damaged file is refused with a warning, and the file before it is tried. If no file is valid,
// Error(Exit::checkpoint) is thrown: the run never starts afresh by itself. An intact file of
// another structure is an error at once, because an older file would lose work without need. Only
// temporary files are removed; the next save moves files of later steps away. All ranks call and
// agree. Rank 0 calls `belongs`, which may exclude files by their step. `poll` is called while
// files are read (together.hpp). If it throws, the target is partly filled.
using Belongs = std::function<bool(int64_t step)>;
std::optional<Restored> restore(
    comm::Comm& comm, const std::string& directory, State& target, const CheckpointOptions& options,
    const Belongs& belongs = {}, const comm::Poll& poll = [] {});

// Fills `target` for a new run that begins from another run's full state. `from` is a checkpoint
// file, or a run directory, whose newest valid file is used. No file is changed. Throws
// Error(Exit::checkpoint) if there is no file or no valid file. A different model or optimizer is
// an error too, which lists the differences. All ranks call and agree.
Restored branch(
    comm::Comm& comm, const std::string& from, State& target, const comm::Poll& poll = [] {});

// Returns the files that `from` names (files_at), as rank 0 lists them. All ranks call.
std::vector<Candidate> agreed_files_at(comm::Comm& comm, const std::string& from);

// Fills the parameters alone (kWeightRoot) from the first valid one of `files`. `target` lists all
// parameters of the model and nothing else; the optimizer of the file is ignored. `average` fills
// them from the average of the weights (kAverageRoot). Tensors without an average, such as frozen
// ones, come from the weights. Throws Error(Exit::checkpoint) if the file holds no average, if it
// belongs to another model, or if no file is valid. No file is changed. All ranks call and agree.
Restored restore_weights(
    comm::Comm& comm, const std::vector<Candidate>& files, bool average, State& target,
    const comm::Poll& poll = [] {});

// Reads this rank's parts from a file whose manifest is known. Throws Error(Exit::checkpoint) if a
// block fails its checksum. Returns the bytes read. `token` can cancel the call (base/cancel.hpp).
int64_t read_parts(const std::string& path, const Manifest& manifest,
                   const std::vector<shard::TensorSlice>& tensors,
                   const std::stop_token& token = {}, const IoLimits& io = {});

}  // namespace checkpoint
