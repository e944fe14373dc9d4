// SPDX-License-Identifier: Apache-2.0
// Tests when the lane's thread sleeps and wakes. No MPI is needed for that.
#include "comm/mpi_lane.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace {

// Never ends, and has nothing to do until somebody rings.
struct Idle : comm::MpiLane::Work {
  bool advance() override { return false; }
  bool idle() const override { return true; }
};

// A waiting main thread announces repeatedly that it attends to the bell.
TEST(MpiLane, StopsWhileSomebodyAttends) {
  comm::Bell bell;
  std::atomic<bool> attends = true;
  std::thread main([&] {
    while (attends) bell.attend(true);
  });
  for (int round = 0; round < 2000; ++round) {
    Idle work;
    comm::MpiLane lane(bell);
    lane.start(work, [] {});
    std::this_thread::sleep_for(std::chrono::microseconds(100));  // until the lane's thread sleeps
    lane.stop();
  }
  attends = false;
  main.join();
}

}  // namespace
