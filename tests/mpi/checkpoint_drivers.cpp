// SPDX-License-Identifier: Apache-2.0
// Compares the checkpoint drivers. They write equal files, each reads the other's files, and MPI-IO
// keeps the promises of the direct driver.
#include "checkpoint_rig.hpp"
#include "io/version.hpp"

namespace tests {
namespace {

using checkpoint::IoLimits;

// MPI-IO with collective and with independent transfers; empty with a serial HDF5.
std::vector<IoLimits> ways_of_mpio() {
  std::vector<IoLimits> ways;
  if (!io::hdf5_is_parallel()) return ways;
  IoLimits way{.threads = 2, .mpio = true, .hints = {{"cb_nodes", "1"}}};
  ways.push_back(way);
  way.hints.clear();
  way.collective = false;
  ways.push_back(way);
  return ways;
}

}  // namespace

void check_drivers(CheckpointTest& t) {
  const IoLimits direct;
  int number = 0;
  for (const IoLimits& way : ways_of_mpio())
    for (Cut how : {Cut::uneven, Cut::small_pieces, Cut::first_holds_nothing}) {
      std::string directory = t.fresh(fmt::format("drivers_{}", number++).c_str());
      t.with(t.world.size(), [&](comm::Comm& c) {
        t.io = direct;
        t.save(c, directory, 7, how);
        const std::string want = io::read_file(directory + "/0000000007.h5");
        t.io = way;
        t.restore(c, directory, 7, how);
        c.barrier();
        t.save(c, directory, 7, how);
        EXPECT(io::read_file(directory + "/0000000007.h5") == want, "cut {}, {}", int(how),
               way.collective ? "collective" : "independent");
        t.restore(c, directory, 7, Cut::replicated);
        t.io = direct;
        t.restore(c, directory, 7, Cut::even);
      });
    }
  t.io = direct;
}

// The file holds the state of the moment when the save began.
void check_mpio_beside_training(CheckpointTest& t) {
  for (const IoLimits& way : ways_of_mpio()) {
    std::string directory = t.fresh(way.collective ? "beside_collective" : "beside_independent");
    t.with(t.world.size(), [&](comm::Comm& c) {
      t.io = way;
      auto o = options("auto", 2);
      checkpoint::Saver saver(c, directory, o);
      for (int64_t step = 1; step <= 3; ++step) {
        Owner owner(Cut::uneven, c.rank(), c.size(), step, true);
        owner.state.io = way;
        if (step == 1) {
          EXPECT(saver.stage(owner.state) > 0, "no staging copy");
          saver.plan(owner.state);
        }
        saver.begin(owner.state);
        for (auto& memory : owner.memory) std::fill(memory.begin(), memory.end(), '\x5a');
        std::optional<checkpoint::Saved> saved;
        while (!saved) saved = saver.poll();
        EXPECT(saved->error.empty() && saved->step == step, "{}", saved->error);
        t.restore(c, directory, step);
        c.barrier();
      }
    });
  }
  t.io = {};
}

void check_mpio_harm(CheckpointTest& t) {
  for (const IoLimits& way : ways_of_mpio()) {
    t.io = way;
    way.collective ? check_failing_calls(t) : check_damage(t);
  }
  t.io = {};
}

}  // namespace tests
