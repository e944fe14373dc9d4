// SPDX-License-Identifier: Apache-2.0
// A file with what the threads of one rank did during some steps, for Perfetto (ui.perfetto.dev)
// and tools/trace: Chrome's JSON array of trace events. It grows by whole events, and readers of
// this format do not need the end of the array. So the file of a killed job can be read.
//
//   process     a rank
//   thread      a row: "main", whose outermost spans are the steps, then the others by name. An
//               exchange is a bar from its call to its last byte, in one of as many rows as
//               exchanges run at a time. A GPU's row has its ops.
//   arrow       from the call of an exchange to its row. tools/trace connects ranks
//   times       in microseconds after the begin of the window, on rank 0's clock
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "io/waiting.hpp"
#include "records/span_buffers.hpp"

namespace records {

// The facts of a file that tools need.
struct TraceHead {
  int rank = 0, ranks = 1;
  int64_t attempt = 0;  // of the run
  std::string host = {};
  int64_t first_step = 0, last_step = 0;  // of the window
  int64_t begin_ns = 0;                   // of the window, on this rank's clock
  // This rank's clock minus shift_ns is the time since the window began on rank 0's clock, with a
  // possible error of unsure_ns.
  int64_t shift_ns = 0, unsure_ns = 0;
  int64_t unix_ns = 0;                                   // begin of the window, since 1970
  std::vector<std::pair<std::string, int>> groups = {};  // of exchanges, with their first ranks
};

class TraceFile {
 public:
  // Replaces the file of an earlier attempt. The calling thread gets the first row.
  TraceFile(const std::string& path, const TraceHead& head);

  // Writes the spans that have ended since the last call.
  void write();
  // Writes a step, its exchanges, and the spans that have ended.
  void add_step(int64_t step, int64_t begin_ns, int64_t end_ns);
  // Adds an op of a GPU.
  void add_device_op(const std::string& name, int64_t flops, int64_t bytes, int64_t begin_ns,
                     int64_t end_ns);
  // Writes the spans that are still open, and the end.
  void close(const std::string& reason);
  int64_t events() const { return events_; }
  const std::string& path() const { return lines_.path(); }

 private:
  struct Row {
    int id = 0;
    // Begin times of the spans that were open when the window began. Their ends are separate
    // events.
    std::set<int64_t> open;
  };
  struct Shown {
    std::string_view name, category;
    int64_t begin_ns, ns;
    std::string arguments;
  };
  Row& row_of(const TracedThread& thread);
  void name_row(int id, const std::string& name);
  int exchange_row(const TracedExchange& exchange);
  void begin_event(char phase, int row, int64_t ns);
  void add(const Shown& shown, int row);
  void add_span(const TracedSpan& span, Row& row);
  void add_begin(const TracedSpan& span, int row);
  void add_exchange(const TracedExchange& exchange);
  void write_exchanges();
  void flush();

  const TraceHead head_;
  io::WaitingLines lines_;
  std::string text_;  // not yet in the file
  int64_t events_ = 0;
  std::map<std::pair<int64_t, std::string>, Row> rows_;
  std::vector<int64_t> exchange_rows_;              // by row: end of its last exchange
  std::vector<std::pair<int64_t, int64_t>> steps_;  // begins and ends
  bool device_row_ = false;
};

// "logs/trace/step0000000003.rank00000.json" of a run directory.
std::string trace_path(const std::string& run, int64_t step, int rank);

}  // namespace records
