// SPDX-License-Identifier: Apache-2.0
// Continuing from a checkpoint.
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
  std::string file, path;  // name in its directory, and with it
  int64_t step = 0;
  int64_t bytes = 0;  // of tensors that this rank read
  double seconds = 0;
  std::vector<std::string> refused;  // newer files and why, one line each
};

// Fills `target` from the newest valid file: step, numbers, texts, and the memory its tensors'
// parts point to (every part, writing or not; memory of a device by way of a copy). target.tensors
// says what is wanted; the file must hold exactly that, but for an average of the weights
// (kAverageRoot): one that the file lacks is filled with the weights, one that is not wanted is
// left out. By options.resume:
//   auto    nothing if there is no checkpoint at all
//   must    an error if there is none
//   never   nothing, whatever there is
//   STEP    that one or an error
// Damaged files are refused with a warning and the one before is tried; if files are there but none
// is valid, the error is Error(Exit::checkpoint), never a fresh start. An intact file of another
// structure is an error at once: going back further would lose work without need. Nothing is moved
// or removed but temporary files; files of later steps than the one taken are put aside by the next
// save. All ranks call and agree. `belongs`, asked at rank 0, may leave out files by their step.
// `poll` is called while files are read (together.hpp): if it throws, the target is half filled.
using Belongs = std::function<bool(int64_t step)>;
std::optional<Restored> restore(
    comm::Comm& comm, const std::string& directory, State& target, const CheckpointOptions& options,
    const Belongs& belongs = {}, const comm::Poll& poll = [] {});

// The same for a new run that begins from another run's full state: `from` is a checkpoint file, or
// a run directory, whose newest valid file is taken. Nothing there is changed.
// Error(Exit::checkpoint) if there is none, if none is valid, or if model or optimizer differ (with
// the differences). All ranks call and agree.
Restored branch(
    comm::Comm& comm, const std::string& from, State& target, const comm::Poll& poll = [] {});

// Reads this rank's parts from a file whose manifest is known; Error(Exit::checkpoint) if a block
// fails its checksum. Returns the bytes read. `token`: may ask to give up (base/cancel.hpp).
int64_t read_parts(const std::string& path, const Manifest& manifest,
                   const std::vector<shard::TensorSlice>& tensors,
                   const std::stop_token& token = {});

}  // namespace checkpoint
