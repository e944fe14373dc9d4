// SPDX-License-Identifier: Apache-2.0
// The watchdog: a thread of each rank that notices when the rank makes no progress. It writes the
// stacks of all threads, finds out which rank the job waits for, and ends the job with exit 7 or
// lets it go on. It needs no MPI and takes no lock that other threads hold.
//
// Progress is a span that begins and is not a wait (base/span.hpp), or a MiB that is read or
// written. So a long evaluation, save or restore is not a hang, nor is a wait for another rank that
// makes progress.
#pragma once

#include <memory>
#include <string>

#include "comm/comm.hpp"
#include "config/table.hpp"

namespace job {

enum class OnHang { end, report };

// [watch] of the deck.
struct WatchOptions {
  double limit_s = 600;
  OnHang on_hang = OnHang::end;
  std::string flight_dir;
  void bind(config::Table& t);
};

class Watchdog {
 public:
  // One at a time; all ranks call. Stacks go to the console until use().
  Watchdog(comm::Session& session, const WatchOptions& options);
  ~Watchdog();
  // Opens the flight files of the watchdog that runs, if one does. Stacks go to the logs of this
  // run directory from now on. All ranks call.
  static void use(comm::Comm& world, const std::string& run);
  // Returns the directory of the flight files of a run on this node.
  static std::string flight_directory(const std::string& run);

  // Call it after an error of an exchange on this rank. Names the rank that has called other
  // exchanges than the others, as far as their flight files show; "" if none has. Waits half a
  // second. `by_waits`: if all calls agree, names a rank that waits in a call of its own.
  static std::string who_parted(bool by_waits);

 private:
  class Dog;
  std::unique_ptr<Dog> dog_;
};

// Leaves the signals of the watchdog to its thread. Call it before any thread starts.
void leave_signals_to_watchdog();
// Asks the watchdog of this process, if one runs, for the stacks of all threads, and waits at most
// 3 s for them. A signal handler may call it.
void ask_for_stacks() noexcept;

}  // namespace job
