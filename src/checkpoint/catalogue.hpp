// SPDX-License-Identifier: Apache-2.0
// The checkpoint files of a run: which there are, which are good, which may go.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/layout.hpp"
#include "checkpoint/options.hpp"

namespace checkpoint {

std::string file_name(int64_t step);  // "0000001000.h5"

struct Candidate {
  int64_t step = 0;
  std::string path;
};
// Files with a checkpoint's name, newest step first. Good or bad is another question.
std::vector<Candidate> candidates(const std::string& directory);

// The file that `path` names, or those of the run directory `path` (or of a directory that holds
// files itself), newest first. For reading another run's files: changes nothing.
// Error(Exit::checkpoint) if there is none.
std::vector<Candidate> files_at(const std::string& path);

inline const char* const kBest = "best.h5";
// The step that best.h5 holds; -1 if there is none or it is damaged.
int64_t best_held(const std::string& directory);

// Removes temporary files of dead jobs; returns their names. Only under the run directory's lock.
std::vector<std::string> remove_leftovers(const std::string& directory);

// Moves the files of steps after `step`, but for those of `own` steps, into DIRECTORY/abandoned:
// after a restart from an earlier step they belong to a past that did not happen, and must never be
// mistaken for this run's, nor overwritten by it. Returns their names.
std::vector<std::string> abandon_after(const std::string& directory, int64_t step,
                                       const std::set<int64_t>& own = {});

// Removes what options no longer keep, never the file of `written` (which was just read back). Only
// files whose header, length and structure are right count as kept ones; damaged ones are left
// alone, for a person to look at.
std::vector<std::string> retain(const std::string& directory, int64_t written,
                                const CheckpointOptions& options);

// What a file says it holds: everything but the tensors' data, proved by its checksums.
struct Manifest {
  State state;  // without tensors
  FileLayout layout;
  std::vector<uint64_t> blocks;  // hashes
};
// Error(Exit::checkpoint) says what is wrong with the file.
Manifest inspect(const std::string& path, int64_t step);

// To and from bytes, for sending from rank 0 to the others.
std::string pack(const Manifest& manifest);
Manifest unpack(const std::string& bytes);
std::string pack_attributes(const State& state);  // step, numbers and texts
void unpack_attributes(const std::string& bytes, State& state);

// Readable list of what differs between a file and what is wanted; empty if nothing does. At most
// `most` lines and a count.
std::vector<std::string> differences(const FileLayout& file, const FileLayout& wanted,
                                     size_t most = 50);

}  // namespace checkpoint
