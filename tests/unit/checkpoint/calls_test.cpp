// SPDX-License-Identifier: Apache-2.0
// The calls of a save and of a restore that touch files: more ranks that hold as much each add
// equally many calls, so no rank makes more of them in a larger job.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <numeric>

#include "checkpoint/checkpoint.hpp"
#include "io/files.hpp"
#include "tests/unit/eval/thread_ranks.hpp"

namespace {

using Counts = std::map<std::string, int64_t>;

std::mutex counts_mutex;
Counts counts;
void count_call(int64_t, const char* call, const std::string&) {
  std::lock_guard lock(counts_mutex);
  ++counts[call];
}

template <class Work>
Counts calls_of(Work work) {
  counts.clear();
  io::set_call_hook(count_call);
  work();
  io::set_call_hook(nullptr);
  return counts;
}

struct SaveAndRestore {
  Counts save, restore;
};

// A write ends at each multiple of this in a file.
constexpr int64_t kPortion = 32 << 20;

// Each rank has a part of a matrix, and all have a copy of a vector. The parts fill whole blocks.
SaveAndRestore calls_on(int ranks) {
  constexpr int64_t kEach = 1 << 18, kAlike = 1000;
  std::string folder = testing::TempDir() + "trainer_calls_XXXXXX";
  EXPECT_NE(::mkdtemp(folder.data()), nullptr);
  rig::ThreadRanks all(ranks);
  auto on_ranks = [&](bool filled, auto use) {
    all.run_all([&](comm::Comm& comm) {
      const int64_t begin = comm.rank() * kEach;
      std::vector<float> part(size_t{kEach}), alike(size_t{kAlike});
      if (filled) {
        std::iota(part.begin(), part.end(), float(begin));
        std::iota(alike.begin(), alike.end(), 1.0f);
      }
      checkpoint::State state{.step = filled ? 7 : 0, .tensors = {}, .numbers = {}, .texts = {}};
      state.tensors.push_back({"/params/matrix",
                               device::DType::f32,
                               {ranks, kEach},
                               {{begin, begin + kEach, part.data()}},
                               true});
      state.tensors.push_back({"/params/vector",
                               device::DType::f32,
                               {kAlike},
                               {{0, kAlike, alike.data()}},
                               comm.rank() == 0});
      use(comm, state);
      EXPECT_EQ(state.step, 7);
      EXPECT_EQ(part.front(), float(begin));
      EXPECT_EQ(part.back(), float(begin + kEach - 1));
      EXPECT_EQ(alike.back(), float(kAlike));
    });
  };
  checkpoint::CheckpointOptions options;
  options.resume = "must";
  SaveAndRestore found;
  found.save = calls_of([&] {
    on_ranks(true, [&](comm::Comm& comm, checkpoint::State& state) {
      EXPECT_EQ(checkpoint::save(comm, folder, state, options).error, "");
    });
  });
  found.restore = calls_of([&] {
    on_ranks(false, [&](comm::Comm& comm, checkpoint::State& state) {
      EXPECT_TRUE(checkpoint::restore(comm, folder, state, options));
    });
  });
  found.save["write"] -= int64_t(std::filesystem::file_size(folder + "/0000000007.h5")) / kPortion;
  EXPECT_EQ(std::system(("rm -rf '" + folder + "'").c_str()), 0);
  return found;
}

std::string text_of(const Counts& calls) {
  std::string out;
  for (const auto& [call, count] : calls) out += fmt::format("{} {}  ", call, count);
  return out;
}

void expect_equal_growth(const Counts& of_2, const Counts& of_4, const Counts& of_64) {
  SCOPED_TRACE(fmt::format("2 ranks: {}\n4 ranks: {}\n64 ranks: {}", text_of(of_2), text_of(of_4),
                           text_of(of_64)));
  for (const auto& [call, count] : of_64)
    EXPECT_EQ((count - of_2.at(call)) * 2, (of_4.at(call) - of_2.at(call)) * 62) << call;
}

TEST(CheckpointCalls, EachRankMakesAsManyWhateverTheirNumber) {
  const SaveAndRestore of_2 = calls_on(2), of_4 = calls_on(4), of_64 = calls_on(64);
  expect_equal_growth(of_2.save, of_4.save, of_64.save);
  expect_equal_growth(of_2.restore, of_4.restore, of_64.restore);
}

}  // namespace
