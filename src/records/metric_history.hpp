// SPDX-License-Identifier: Apache-2.0
// The rows that earlier attempts left in metrics.jsonl and metrics.h5. A row counts if either file
// has it, so a file that was removed, cut or garbled is restored from the other one. If both have a
// row, the line of metrics.jsonl wins.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "records/metric_rows.hpp"

namespace records {

struct MetricHistory {
  struct Entry {
    MetricRow row;
    std::string line;     // with "\n"
    int64_t attempt = 1;  // attempt that wrote it
    bool left = false;    // a later attempt went back to before this row
    bool only_h5 = false;
  };
  struct NoRow {
    std::string line;    // with "\n"
    int64_t number = 0;  // line number, from 1
    bool torn = false;   // the last line, without its end: a crash cut it
  };
  std::vector<Entry> entries;  // in the order of writing
  std::vector<NoRow> no_rows;  // lines of metrics.jsonl that are not rows
  std::string text;            // content of metrics.jsonl as it was found
  int64_t last_attempt = 0;
};

// Reads both files of the run directory. A metrics.h5 that cannot be read is renamed, with a
// warning.
MetricHistory read_metric_history(const std::string& directory);

// Describes the rows that only metrics.h5 had: "train 638 (steps 1 to 638), eval/val 7 (steps 0 to
// 600)"; "" if there are none.
std::string only_in_h5(const MetricHistory& history);

// Returns an unused file name in the folder: FOLDER/metrics.abandoned.ENDING, or with a number
// before the ending.
std::string free_abandoned_name(const std::string& directory, const std::string& ending);

// Returns the lines of all rows, attempt by attempt.
std::string lines_of(const MetricGroups& groups);

}  // namespace records
