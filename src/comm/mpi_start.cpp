// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi_start.hpp"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/thread_scope.hpp"
#include "comm/comm.hpp"
#include "comm/launcher.hpp"
#include "comm/mpi_library.hpp"
#include "comm/tree_exchange.hpp"

namespace comm {
namespace {

// Ends the process if MPI does not start. MPI_Init returns when all ranks have called it, and a
// rank with another command never calls it.
class InitGuard {
 public:
  InitGuard() {
    const char* text = std::getenv("TRAINER_MPI_START_S");
    const double seconds = text && std::atof(text) > 0 ? std::atof(text) : kPatience_s;
    thread_ = std::jthread([this, seconds] {
      const base::ThreadScope scope("start of MPI");
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                            [this] { return started_; }))
        return;
      base::log::error(
          "MPI has not started within {:g} s: some ranks never called MPI_Init; start all of them "
          "with the same command line (TRAINER_MPI_START_S sets how long to wait)",
          seconds);
      std::_Exit(int(base::Exit::config));
    });
  }
  ~InitGuard() {
    std::lock_guard lock(mutex_);
    started_ = true;
    changed_.notify_all();
  }

 private:
  static constexpr double kPatience_s = 600;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool started_ = false;
  std::jthread thread_;  // the last member, so it is joined before the other members are destroyed
};

// Each rank of a job that another MPI's launcher has started would take itself for the only one.
void check_launcher(Launcher by, int launched) {
  int size = 1;
  CHECK_MPI(MPI_Comm_size(MPI_COMM_WORLD, &size));
  if (launched > 1 && size == 1)
    base::fail(base::Exit::mesh,
               "{} has started {} ranks, but this program's MPI ({} {}) sees only one: use the "
               "launcher of that MPI",
               launcher_name(by), launched, mpi_library().name, mpi_library().version);
}

}  // namespace

bool start_mpi(int& argc, char**& argv) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized) return false;
  // These are read before MPI_Init, which sets the variables itself for a single rank.
  const Launcher by = launcher();
  const int launched = launched_ranks();
  int provided = 0;
  {
    InitGuard guard;
    check_mpi(MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  }
  if (provided < MPI_THREAD_SERIALIZED)
    base::fail(base::Exit::mesh, "this MPI library offers no MPI_THREAD_SERIALIZED");
  check_launcher(by, launched);
#ifdef TRAINER_MPI_PLUGINS
  if (launched_rank() == 0)
    base::log::line("mpi      {} {}, {}", mpi_library().name, mpi_library().version,
                    plugin::loaded_text());
#endif
  return true;
}

}  // namespace comm
