// SPDX-License-Identifier: Apache-2.0
// Copies of shards on node-local disk: made once per node, found again by the next start, read
// instead of the originals.
#pragma once

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

namespace data {

// "$TMPDIR/x" and "${TMPDIR}/x" with the variables' values. Error(Exit::config) for one that is not
// set here.
std::string expand_variables(const std::string& text);

// Where the copy of a file lies. Files of different directories may have the same name.
std::string staged_path(const std::string& directory, const std::string& original);

struct Staged {
  int64_t files = 0, bytes = 0;                // all of them
  int64_t copied_files = 0, copied_bytes = 0;  // of them, copied now; the others were there
};

// Copies the files that are not there yet, or are there with another size or modification time;
// each appears whole, by rename, so a killed copy is made again. By one process of a node.
// Originals that are not there, or are folders, are left out: whether that is an error, their
// source knows. Error(Exit::data) if an original cannot be read or the space is too small, with the
// figures, before anything is copied. `token`: may ask to give up (base/cancel.hpp).
Staged stage_files(const std::vector<std::string>& originals, const std::string& directory,
                   int threads, const std::stop_token& token = {});

}  // namespace data
