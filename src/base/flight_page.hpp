// SPDX-License-Identifier: Apache-2.0
// The flight page: what the threads of this process do now, and what they did last. It is plain
// memory of 64 KiB, written with plain stores. A run maps it to a file, so that it can be read
// after SIGKILL and while the process is stopped. tools/flight.py reads the same layout.
//
// Every field is one word that one thread writes at a time. A reader may meet a record that is
// being written: the first word of a record is 0 then, or has changed when it is read again.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace base {

// 8 bytes of the page.
using FlightWord = std::atomic<uint64_t>;
// A name of up to 31 bytes. The last byte holds the SpanKind.
using FlightName = std::array<FlightWord, 4>;

struct FlightPage {
  static constexpr uint64_t kMagic = 0x3154484749'4C46ull;  // "FLIGHT1" in memory
  static constexpr int kThreads = 32, kDepth = 12, kExchanges = 96, kSpans = 480;

  // It has many members because each fact about the process has one.
  struct Head {
    FlightWord magic, pid, rank, ranks;
    FlightWord step;
    FlightName phase;
    FlightWord start_ns;        // of the process; all times are on base::now_ns()
    FlightWord unix_offset_ns;  // what to add for the time since 1970
    FlightWord alive_ns;        // last tick of the watchdog; 0: it does not run
    FlightWord spans;           // records that were begun in `spans`
    FlightWord exchanges;       // calls of exchanges
    FlightWord calls_hash;      // of kind, type, count, group and site of all calls
    std::array<FlightWord, 8> host;
    // CPU time of the main thread during the last seconds, in millionths of the time that passed. A
    // thread that polls for an exchange uses some; one that is stuck in a call uses none.
    FlightWord main_ran_ppm;
    // Nanoseconds since the process began, by what they were spent on (job::Spent), up to
    // spent_until_ns; 0: not counted yet. The time after that belongs to the phase.
    std::array<FlightWord, 8> spent_ns;
    FlightWord spent_until_ns;
    // Resident memory of the process at the watchdog's last look. It shows whether a process may
    // have been killed for its memory.
    FlightWord resident_kib;
    FlightWord work;  // grows when the process makes progress (job/progress_clock.hpp)
    std::array<FlightWord, 93> unused;
  };
  // A span that a thread has begun and not ended.
  struct Open {
    FlightName name;
    FlightWord number, begin_ns;
  };
  // Open spans, the outermost first. More than kDepth are counted, not kept.
  struct Thread {
    FlightWord tid;  // 0: no thread has this place
    std::array<FlightWord, 2> name;
    FlightWord depth;
    FlightWord begun;  // spans that are not waits; constant while the thread makes no progress
    std::array<FlightWord, 3> unused;
    std::array<Open, kDepth> open;
  };
  struct Exchange {
    FlightWord call;      // the call's number from 1
    FlightWord begin_ns;  // of the call
    FlightWord ns;        // until the last byte arrived; 0: not yet
    FlightWord count, type;
    std::array<FlightWord, 2> kind, group;
    FlightName site;  // innermost open span at the call
    std::array<FlightWord, 3> unused;
  };
  // A span that has ended. `place` is the record's number from 1, times 256, plus the thread's
  // index in `threads`; 255: a thread without a place.
  struct Record {
    FlightWord place;
    FlightWord begin_ns, ns;
    FlightWord number;
    FlightName name;
  };

  Head head;
  std::array<Thread, kThreads> threads;
  std::array<Exchange, kExchanges> exchanges;
  std::array<Record, kSpans> spans;
};
constexpr size_t kFlightBytes = 64 << 10;
static_assert(sizeof(FlightPage::Head) == 1024 && sizeof(FlightPage::Thread) == 640 &&
              sizeof(FlightPage::Exchange) == 128 && sizeof(FlightPage::Record) == 64);
static_assert(sizeof(FlightPage) <= kFlightBytes && FlightWord::is_always_lock_free);

// The page of this process.
FlightPage& flight_page();
// Maps the page to this file from now on and keeps its contents. Returns the problem; "" = it is
// mapped. The file system must have reserved kFlightBytes for the file.
const char* map_flight_page(int file);

}  // namespace base
