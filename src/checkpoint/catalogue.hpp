// SPDX-License-Identifier: Apache-2.0
// The checkpoint files of a run: lists them, inspects them, removes those no longer kept.
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
// Lists the files with a checkpoint's name, newest step first. Does not open them.
std::vector<Candidate> candidates(const std::string& directory);

// Returns the file that `path` names, or the checkpoints of the directory `path`, newest first. The
// directory may be a run directory or hold the files itself. Changes nothing, so another run's
// files can be read. Throws Error(Exit::checkpoint) if there is none.
std::vector<Candidate> files_at(const std::string& path);

// A symbolic link to the newest file, for people and scripts. The program never reads it.
inline const char* const kLatest = "latest.h5";
inline const char* const kBest = "best.h5";
// Returns the step that best.h5 holds; -1 if the file is missing or damaged.
int64_t best_held(const std::string& directory);

// Removes temporary files of dead jobs; returns their names. The caller must hold the run
// directory's lock.
std::vector<std::string> remove_leftovers(const std::string& directory);

// Moves the files of steps after `step`, except those of `own` steps, into DIRECTORY/abandoned and
// returns their names. After a restart from an earlier step these files belong to an abandoned
// history. This run must neither mistake them for its own nor overwrite them.
std::vector<std::string> abandon_after(const std::string& directory, int64_t step,
                                       const std::set<int64_t>& own = {});

// Removes the files that `options` no longer keep, and returns their names. Never removes the file
// of `written`, which was just read back. Only files with a valid header, length and structure
// count as kept. Damaged files stay in place for a person to inspect.
std::vector<std::string> retain(const std::string& directory, int64_t written,
                                const CheckpointOptions& options);

// The contents of a file except the tensors' data, verified by the file's checksums.
struct Manifest {
  State state;  // without tensors
  FileLayout layout;
  std::vector<uint64_t> blocks;  // hashes
};
// Throws Error(Exit::checkpoint), which names the defect of the file.
Manifest inspect(const std::string& path, int64_t step);

// Convert to and from bytes, so that rank 0 can send them to the other ranks.
std::string pack(const Manifest& manifest);
Manifest unpack(const std::string& bytes);

// Lists the differences between the layout of a file and the wanted layout, one line each. Returns
// at most `most` lines and a line with the number of further ones.
std::vector<std::string> differences(const FileLayout& file, const FileLayout& wanted,
                                     size_t most = 50);

}  // namespace checkpoint
