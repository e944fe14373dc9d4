// SPDX-License-Identifier: Apache-2.0
// Lines for the log from what preprocessing ops counted (Dataset::counts): a share of captions that
// were cut, per field.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace data {

// counts: "FIELD.captions", "FIELD.captions_cut", "FIELD.captions_empty", summed over ranks.
std::vector<std::string> count_lines(const std::string& dataset,
                                     const std::map<std::string, int64_t>& counts);

}  // namespace data
