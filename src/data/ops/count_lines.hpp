// SPDX-License-Identifier: Apache-2.0
// Formats the counts of preprocessing ops (Dataset::counts) as lines for the log: the share of
// captions that were cut, per field.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace data {

// `counts` holds "FIELD.captions", "FIELD.captions_cut" and "FIELD.captions_empty", summed over
// ranks.
std::vector<std::string> count_lines(const std::string& dataset,
                                     const std::map<std::string, int64_t>& counts);

}  // namespace data
