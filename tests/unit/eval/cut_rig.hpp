// SPDX-License-Identifier: Apache-2.0
// Evaluations that are cut off and go on with other ranks and batches, for tests of every evaluator
// that keeps a journal.
#pragma once

#include <unistd.h>

#include <filesystem>

#include "rig.hpp"
#include "thread_ranks.hpp"

namespace rig {

// Checks that cutting an evaluation off after its first, second or third test for a stop changes no
// value. make_pass() returns a unique_ptr of a pass for one rank. The set must have more than 24
// examples.
template <class MakePass>
void expect_cuts_change_nothing(const eval::EvalOptions& options, const data::Dataset& set,
                                const MakePass& make_pass) {
  const std::string folder =
      (std::filesystem::temp_directory_path() / fmt::format("cut_{}", getpid())).string();
  auto evaluate = [&](int ranks, int64_t batch, int64_t most_questions, bool keeps) {
    std::vector<eval::Result> out(static_cast<size_t>(ranks));
    ThreadRanks(ranks).run_all([&](comm::Comm& world) {
      const auto pass = make_pass();
      std::unique_ptr<eval::Journal> journal;
      if (keeps)
        journal = std::make_unique<eval::Journal>(world, folder, "test", eval::Journal::Identity{});
      int64_t questions = 0;
      out[size_t(world.rank())] = eval::make_evaluator(options)->run(
          {.world = world,
           .dataset = set,
           .loader = {},
           .batch = batch,
           .pass = pass.get(),
           .forward = runs_of(*pass),
           .interrupted = [&] { return questions++ == most_questions; },
           .journal = journal.get()});
    });
    return out;
  };
  constexpr int64_t kNoCut = 1 << 30;
  const eval::Result uncut = evaluate(1, 5, kNoCut, false)[0];
  ASSERT_FALSE(uncut.values.empty());
  for (int64_t cut : {1, 2, 3}) {
    std::filesystem::remove_all(folder);
    for (const eval::Result& r : evaluate(2, 3, cut, true))
      EXPECT_TRUE(r.interrupted && r.values.empty()) << options.kind << " after " << cut;
    for (int attempt : {1, 2})  // the second one finds everything in the journal
      for (const eval::Result& r : evaluate(3, 2, kNoCut, true)) {
        EXPECT_EQ(r.values, uncut.values) << options.kind << " after " << cut << ", " << attempt;
        EXPECT_EQ(r.examples, uncut.examples);
      }
  }
  std::filesystem::remove_all(folder);
}

}  // namespace rig
