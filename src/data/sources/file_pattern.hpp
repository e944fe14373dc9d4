// SPDX-License-Identifier: Apache-2.0
// Names of data files in a deck: "train-{000..003}.tar", "shards/*.tar", "{a,b}/[0-9]*.tar".
#pragma once

#include <string>
#include <vector>

namespace data {

// Expands braces (brace.hpp), then *, ? and [...] in each name against the files that exist: never
// a leading dot, the matches of one name sorted by their bytes. A file whose name is the pattern
// itself is taken literally. The tar indexes that this program writes beside its shards are left
// out. Names without *, ?, [ need not exist. Error(Exit::config) for bad braces. Error(Exit::data)
// for a pattern that matches nothing, for a file that two patterns match, for a folder that cannot
// be listed, and for a folder alone.
std::vector<std::string> files_matching(const std::string& pattern);

}  // namespace data
