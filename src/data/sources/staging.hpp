// SPDX-License-Identifier: Apache-2.0
// Copies of shards on node-local disk. They are made once per node, found again by the next start,
// and read instead of the originals.
#pragma once

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

namespace data {

// Replaces the variables in "$TMPDIR/x" and "${TMPDIR}/x". Throws Error(Exit::config) for a
// variable that is not set.
std::string expand_variables(const std::string& text);

// Returns the path of a file's copy. Files of different directories may have the same name.
std::string staged_path(const std::string& directory, const std::string& original);

struct Staged {
  int64_t files = 0, bytes = 0;                // all files
  int64_t copied_files = 0, copied_bytes = 0;  // files copied by this call
};

// Copies the files whose copy is missing, has another size or modification time, or is older than
// the last change of the original's inode. Each copy appears whole, by rename, so an interrupted
// copy is made again. One process of a node calls this. Missing originals and folders are skipped;
// their source decides whether that is an error. Throws Error(Exit::data) if an original cannot be
// read. If the space is too small, throws before anything is copied; the message has the sizes.
// `token` may request to give up (base/cancel.hpp).
Staged stage_files(const std::vector<std::string>& originals, const std::string& directory,
                   int threads, const std::stop_token& token = {});

}  // namespace data
