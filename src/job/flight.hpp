// SPDX-License-Identifier: Apache-2.0
// Flight files: RUN/logs/flight/RANK is the mapped flight page of each rank (base/flight_page.hpp).
// It shows what a rank does, or did last, also after SIGKILL. tools/status reads it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/flight_page.hpp"
#include "job/spent.hpp"

namespace job {

// Maps this rank's page to a file of `directory`, which exists. Returns why not; "" = it is mapped.
std::string open_flight_file(const std::string& directory, int rank, const std::string& host);
// Keeps the page in memory that other processes of this node can read, until it has a file. Returns
// a path for them; "" = it cannot be shared.
std::string share_flight_page(const std::string& host);
std::string flight_file(const std::string& directory, int rank);

// A span as text: "write a checkpoint", "step 12".
struct OpenSpan {
  std::string text;
  bool waits = false;
  int64_t begin_ns = 0;  // on the rank's clock; 0: not known
};
struct FlightThread {
  std::string name;
  std::vector<OpenSpan> open;  // the outermost first, without the phase
};
struct FlightExchange {
  uint64_t call = 0;  // number from 1; 0: none
  std::string text;   // "all_reduce f32 x 1024 of fsdp, in step"
  int64_t begin_ns = 0;
  bool ended = false;
};
// The contents of a page. It has many members because each fact about the process has one.
struct Flight {
  int64_t process = 0, rank = 0, step = 0;
  std::string host, phase;
  uint64_t begun = 0;      // spans that are not waits, of all threads
  uint64_t exchanges = 0;  // calls
  int64_t alive_ns = 0;    // last sign of the watchdog
  std::vector<FlightThread> threads;
  FlightExchange last;  // exchange call
  // The oldest call that has not ended, which holds up all others; `last` if all have.
  FlightExchange oldest;
  std::vector<FlightExchange> calls;  // the newest ones that are known, the oldest first
  int64_t main_ran_ppm = 0;  // CPU time of the main thread lately, in millionths of all time
  Spent spent;               // until spent_until_ns, which is 0 if nothing was counted
  int64_t spent_until_ns = 0, resident_bytes = 0;
  // The newest time in the page, on the rank's clock: when the rank last did something. Add
  // unix_offset_ns for the time since 1970.
  int64_t last_sign_ns = 0, unix_offset_ns = 0;
};
// Returns "all_reduce of fsdp, f32 x 1024, in update".
std::string describe(const base::FlightPage::Exchange& exchange);
// Returns "rank 3", or "ranks 0, 2 and 5 more".
std::string list_of_ranks(const std::vector<int>& ranks);

// Reads a page from a file. Returns nothing if the file does not exist or holds another format.
std::optional<Flight> read_flight(const std::string& file);
// Reads how much work the rank of this file has done (progress_clock.hpp); 0 if there is no file.
// Reads only 8 bytes, because the bytes that a process reads count as its own progress.
uint64_t work_in(const std::string& file);
// Reads the page of this process.
Flight own_flight();

// Describes the open spans of a thread, "step 12 > block forward 3 > gemm", into `buffer` without
// allocating. Returns the length.
size_t describe_main_thread(char* buffer, size_t size);

}  // namespace job
