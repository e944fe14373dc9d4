// SPDX-License-Identifier: Apache-2.0
// Finds the rows of a long run at its start without reading millions of lines. metrics.h5 names the
// part of metrics.jsonl whose rows it has, and keeps hashes of pieces of that part. If the pieces
// are unchanged, a start reads only the lines behind them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "io/files.hpp"
#include "records/metric_starts.hpp"
#include "records/stored_rows.hpp"

namespace records {

struct LongHistory {
  StoredRows stored;    // long groups
  MetricGroups groups;  // all others, and all starts
  int64_t begin = 0;    // place in metrics.jsonl: the rows above are those of the lines before it
  int64_t lines = 0;    // about their number
  std::map<int64_t, double> uptimes;  // last uptime_s of each attempt in them
};

// The attribute of metrics.h5 with the hashes: places behind pieces, and their hashes.
inline constexpr const char* kJsonlCheck = "jsonl_check";
std::string jsonl_check(const std::string& path, int64_t bytes);

// Reads what the run directory has up to a step. Nothing: no group is long, or the files do not
// fit together. In that case all rows must be read.
std::optional<LongHistory> read_long_history(const std::string& directory, int64_t step);

// Calls `work` for each line from a place on: its text, its place, and whether it has its end.
void for_lines(const io::File& file, int64_t begin,
               const std::function<void(const std::string& line, int64_t place, bool whole)>& work);

}  // namespace records
