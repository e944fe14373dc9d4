// SPDX-License-Identifier: Apache-2.0
// Finds the data files that a deck names: "train-{000..003}.tar", "shards/*.tar",
// "{a,b}/[0-9]*.tar".
#pragma once

#include <string>
#include <vector>

namespace data {

// Expands braces (brace.hpp), then *, ? and [...] in each name against the existing files. A
// wildcard never matches a leading dot; the matches of one name are sorted by their bytes. A file
// whose name is the pattern itself is used literally. The tar indexes that this program writes
// beside its shards are left out. Names without *, ?, [ need not exist. Throws Error(Exit::config)
// for bad braces. Throws Error(Exit::data) for a pattern that matches nothing, for a file that two
// patterns match, for a folder that cannot be listed, and if the only result is a folder.
std::vector<std::string> files_matching(const std::string& pattern);

}  // namespace data
