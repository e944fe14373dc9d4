// SPDX-License-Identifier: Apache-2.0
// For the parts of checkpoint_test: groups of ranks that save and restore a made-up state, and
// errors that every rank of a group must get.
#pragma once

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "../unit/checkpoint/made_state.hpp"
#include "checkpoint/checkpoint.hpp"
#include "io/files.hpp"
#include "ranks.hpp"

#define EXPECT(condition, ...)                                                               \
  do {                                                                                       \
    if (!(condition))                                                                        \
      throw std::runtime_error(                                                              \
          fmt::format("line {}: {} {}", __LINE__, #condition, fmt::format("" __VA_ARGS__))); \
  } while (0)

namespace tests {

inline checkpoint::CheckpointOptions options(const std::string& resume = "auto",
                                             int64_t keep_last = 100) {
  checkpoint::CheckpointOptions o;
  o.resume = resume;
  o.keep_last = keep_last;
  return o;
}

// One run of the program, in a folder of its own.
struct CheckpointTest {
  comm::Session& session;
  comm::Comm& world;
  std::string root;
  checkpoint::IoLimits io = {};  // of saves and restores

  std::string fresh(const char* name) {
    std::string directory = root + "/" + name;
    if (world.rank() == 0) io::make_directories(directory);
    world.barrier();
    return directory;
  }
  // Runs `work` on the first `ranks` ranks with their own communicator.
  void with(int ranks, const std::function<void(comm::Comm&)>& work) {
    bool inside = world.rank() < ranks;
    auto group = session.split(inside ? 0 : 1, world.rank(), comm::SumOrder::library);
    std::string problem;
    try {
      if (inside) work(*group);
    } catch (const std::exception& e) {
      problem = e.what();
    }
    group.reset();
    auto problems = world.gather_text(problem);
    for (size_t r = 0; r < problems.size(); ++r)
      if (!problems[r].empty())
        throw std::runtime_error(
            fmt::format("{} of {} ranks, rank {}: {}", ranks, world.size(), r, problems[r]));
  }
  void save(comm::Comm& c, const std::string& directory, int64_t step, Cut how = Cut::even,
            int64_t keep_last = 100) {
    Owner owner(how, c.rank(), c.size(), step, true);
    owner.state.io = io;
    if (c.rank() != 0) {
      owner.state.numbers["train_s"] = -1;
      owner.state.texts["name"] = "another rank's";
    }
    checkpoint::save(c, directory, owner.state, options("auto", keep_last));
  }
  std::optional<checkpoint::Restored> restore(comm::Comm& c, const std::string& directory,
                                              int64_t expected, Cut how = Cut::even,
                                              const std::string& resume = "auto") {
    Owner owner(how, c.rank(), c.size(), 0, false);
    owner.state.io = io;
    auto restored = checkpoint::restore(c, directory, owner.state, options(resume));
    EXPECT(bool(restored) == (expected >= 0));
    if (restored) EXPECT(owner.problem(expected).empty(), "{}", owner.problem(expected));
    return restored;
  }
  // Every rank gets an error of this exit code whose text has all the words.
  template <class Work>
  void refused(comm::Comm& c, base::Exit code, const std::vector<std::string>& words, Work work) {
    std::string text;
    try {
      work();
    } catch (const base::Error& e) {
      text = e.what();
      EXPECT(e.code() == code, "exit {}: {}", int(e.code()), text);
    }
    EXPECT(!text.empty(), "no error");
    for (const std::string& word : words)
      EXPECT(text.find(word) != text.npos, "'{}' is not in '{}'", word, text);
    for (const std::string& other : c.gather_text(text))  // failed checks name the rank
      EXPECT(other == text || code == base::Exit::internal, "ranks disagree: {} / {}", other, text);
  }
  void on_first(comm::Comm& c, const std::function<void()>& work) {
    if (c.rank() == 0) work();
    c.barrier();
  }
};

// checkpoint_harm.cpp
void check_damage(CheckpointTest& t);
void check_failing_calls(CheckpointTest& t);
void check_coverage(CheckpointTest& t);
// checkpoint_drivers.cpp
void check_drivers(CheckpointTest& t);
void check_mpio_beside_training(CheckpointTest& t);
void check_mpio_harm(CheckpointTest& t);

}  // namespace tests
