// SPDX-License-Identifier: Apache-2.0
// Tests journals of evaluations: what the next attempt takes over after cuts, torn files and other
// identities, on any numbers of ranks.
#include "eval/journal.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>

#include "models/caption_scorer.hpp"
#include "rig.hpp"
#include "thread_ranks.hpp"

namespace {

namespace fs = std::filesystem;

const eval::Journal::Identity kIdentity = {{"weights", "1"}, {"options", "a"}};

class JournalTest : public testing::Test {
 protected:
  JournalTest() : folder_(fs::temp_directory_path() / fmt::format("journal_{}", getpid())) {}
  ~JournalTest() override { fs::remove_all(folder_); }
  std::string folder() const { return folder_.string() + "/partial"; }

  static double value_of(int64_t position) { return 0.1 * double(position * position) - 3; }

  // Runs batches of a stage until a rank has done `most` of them. Returns how many examples the
  // journal had. Checks their values.
  int64_t attempt(int ranks, int64_t batch, int64_t examples, int64_t most,
                  const eval::Journal::Identity& identity = kIdentity) {
    std::mutex mutex;
    std::set<int64_t> taken;
    std::atomic<int64_t> known = 0;
    rig::ThreadRanks(ranks).run_all([&](comm::Comm& world) {
      eval::Journal journal(world, folder(), "eval=x step=1", identity);
      const int64_t begin =
          journal.begin("images", examples, [&](int64_t position, std::string_view bytes) {
            double value = 0;
            eval::copy_values(bytes, std::span(&value, 1));
            const std::scoped_lock lock(mutex);
            EXPECT_EQ(value, value_of(position));
            EXPECT_TRUE(taken.insert(position).second) << position << " was given twice";
          });
      for (int64_t round = 0; round < most; ++round) {
        const int64_t first = begin + (round * world.size() + world.rank()) * batch;
        for (int64_t p = first; p < std::min(first + batch, examples); ++p) {
          const double value = value_of(p);
          journal.add(p, std::span(&value, 1));
        }
        journal.write();
      }
      known = begin;
    });
    EXPECT_EQ(int64_t(taken.size()), known);
    EXPECT_EQ(taken.empty() ? -1 : *taken.rbegin(), known - 1);
    return known;
  }

  fs::path folder_;
};

TEST_F(JournalTest, GoesOnBehindTheCompleteBatches) {
  for (const int ranks : {1, 2, 3}) {
    SCOPED_TRACE(ranks);
    fs::remove_all(folder_);
    EXPECT_EQ(attempt(ranks, 4, 50, 2), 0);
    EXPECT_EQ(attempt(1, 5, 50, 2), 8 * ranks);
    EXPECT_EQ(attempt(4, 1, 50, 3), 8 * ranks + 10);
    EXPECT_EQ(attempt(2, 7, 50, 0), 8 * ranks + 22);
    EXPECT_EQ(attempt(2, 7, 50, 9), 8 * ranks + 22);
    EXPECT_EQ(attempt(3, 7, 50, 0), 50);
  }
}

TEST_F(JournalTest, ABatchThatARankLacksIsMadeAgain) {
  EXPECT_EQ(attempt(2, 4, 50, 3), 0);
  fs::resize_file(folder() + "/0", fs::file_size(folder() + "/0") - 1);
  EXPECT_EQ(attempt(2, 4, 50, 0), 16) << "the last batch of rank 0 is torn";
  EXPECT_EQ(attempt(2, 4, 50, 1), 16);
  EXPECT_EQ(attempt(2, 4, 50, 0), 24);
}

// On a network file system a rank may see less of a file than another one.
TEST_F(JournalTest, RanksThatSeeUnlikeLengthsTakeWhatAllSee) {
  EXPECT_EQ(attempt(2, 4, 50, 3), 0);
  const std::string other = folder_.string() + "/other";
  for (int sees_less : {0, 1}) {
    fs::remove_all(other);
    fs::copy(folder(), other);
    fs::resize_file(other + "/0", fs::file_size(other + "/0") - 1);
    std::vector<int64_t> begun(2);
    std::mutex mutex;
    std::set<int64_t> taken;
    rig::ThreadRanks(2).run_all([&](comm::Comm& world) {
      eval::Journal journal(world, world.rank() == sees_less ? other : folder(), "eval=x step=1",
                            kIdentity);
      begun[size_t(world.rank())] =
          journal.begin("images", 50, [&](int64_t position, std::string_view bytes) {
            double value = 0;
            eval::copy_values(bytes, std::span(&value, 1));
            const std::scoped_lock lock(mutex);
            EXPECT_EQ(value, value_of(position));
            taken.insert(position);
          });
    });
    // Rank 0 reads the file. If it sees a torn batch, none of its examples counts; rank 1 lacks the
    // last example alone.
    const int64_t common = sees_less == 0 ? 16 : 19;
    EXPECT_EQ(begun, (std::vector<int64_t>{common, common})) << "rank " << sees_less;
    EXPECT_EQ(int64_t(taken.size()), common);
    EXPECT_EQ(*taken.rbegin(), common - 1);
  }
}

// A rank reads the bytes that another rank has checked, or none.
TEST_F(JournalTest, AnExampleThatHasChangedSinceIsMadeAgain) {
  EXPECT_EQ(attempt(2, 4, 50, 3), 0);
  rig::ThreadRanks(3).run_all([&](comm::Comm& world) {
    eval::Journal journal(world, folder(), "eval=x step=1", kIdentity);
    if (world.rank() == 0) {
      const double other = 7;
      std::fstream file(folder() + "/1", std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(-std::streamoff(sizeof other), std::ios::end);  // position 23
      file.write(reinterpret_cast<const char*>(&other), sizeof other);
    }
    world.barrier();
    EXPECT_EQ(journal.begin("images", 50, [](int64_t p, std::string_view) { EXPECT_LT(p, 23); }),
              23);
  });
}

// A rank whose file fails must go on with the others: what earlier attempts have kept stays known.
TEST_F(JournalTest, ARankThatCannotWriteStillTakesItsShareOver) {
  const auto run = [&](bool fails) {
    std::vector<int64_t> begun(2);
    rig::ThreadRanks(2).run_all([&](comm::Comm& world) {
      eval::Journal journal(world, folder(), "eval=x step=1", kIdentity);
      for (const char* stage : {"images", "texts"}) {
        const auto take = [](int64_t, std::string_view) {};
        const int64_t begin = begun[size_t(world.rank())] = journal.begin(stage, 50, take);
        world.barrier();
        if (fails && world.rank() == 1)
          io::set_call_hook([](int64_t, const char* call, const std::string& path) {
            if (path.ends_with("/1") && std::string_view(call) == "write")
              throw io::Failure("the disk is full", 28);
          });
        journal.add(begin + world.rank(), "bytes");
        journal.write();
        world.barrier();
        io::set_call_hook(nullptr);
        world.barrier();
      }
    });
    return begun;
  };
  EXPECT_EQ(run(false), (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(run(true), (std::vector<int64_t>{2, 2}));
}

std::mutex readers_mutex;
std::map<std::string, std::set<std::thread::id>> readers;  // of each file

TEST_F(JournalTest, OneRankReadsEachFile) {
  EXPECT_EQ(attempt(5, 4, 50, 2), 0);
  readers.clear();
  io::set_call_hook([](int64_t, const char* call, const std::string& path) {
    const std::scoped_lock lock(readers_mutex);
    if (std::string_view(call) == "read") readers[path].insert(std::this_thread::get_id());
  });
  rig::ThreadRanks(3).run_all(
      [&](comm::Comm& world) { eval::Journal(world, folder(), "eval=x step=1", kIdentity); });
  io::set_call_hook(nullptr);
  EXPECT_EQ(readers.size(), 5u);
  for (const auto& [path, ranks] : readers) EXPECT_EQ(ranks.size(), 1u) << path;
}

// A stage that one rank does not see at all begins anew on all of them.
TEST_F(JournalTest, AStageThatOneRankDoesNotSeeBeginsAnew) {
  EXPECT_EQ(attempt(2, 4, 50, 3), 0);
  rig::ThreadRanks(2).run_all([&](comm::Comm& world) {
    eval::Journal journal(world, folder() + (world.rank() == 1 ? "/none" : ""), "eval=x step=1",
                          kIdentity);
    EXPECT_EQ(journal.begin("images", 50, [](int64_t, std::string_view) { ADD_FAILURE(); }), 0);
  });
}

TEST_F(JournalTest, DamageEndsAFile) {
  EXPECT_EQ(attempt(1, 4, 50, 5), 0);
  const auto size = int64_t(fs::file_size(folder() + "/0"));
  const std::string path = folder() + "/0";
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(size - size / 4);
  file.put('\x7f');
  file.close();
  const int64_t known = attempt(1, 4, 50, 0);
  EXPECT_GE(known, 12);
  EXPECT_LT(known, 20);
  EXPECT_EQ(known % 4, 0);
}

TEST_F(JournalTest, OtherWeightsBeginAnew) {
  EXPECT_EQ(attempt(2, 4, 50, 2), 0);
  testing::internal::CaptureStdout();
  EXPECT_EQ(attempt(3, 4, 50, 1, {{"weights", "2"}, {"options", "a"}}), 0);
  EXPECT_NE(testing::internal::GetCapturedStdout().find(
                "eval=x step=1 begins anew: its journal has other weights"),
            std::string::npos);
  EXPECT_EQ(attempt(1, 4, 50, 0, {{"weights", "2"}, {"options", "a"}}), 12);
  EXPECT_EQ(attempt(1, 4, 50, 0), 0);
}

TEST_F(JournalTest, WhatIsNoJournalIsNoHelp) {
  fs::create_directories(folder());
  for (const char* text : {"", "short", "a text that is longer than the head of a record"}) {
    std::ofstream(folder() + "/0") << text;
    EXPECT_EQ(attempt(2, 4, 50, 1), 0);
    EXPECT_EQ(attempt(1, 4, 50, 0), 8);
    fs::remove_all(folder());
    fs::create_directories(folder());
  }
}

TEST_F(JournalTest, AnEvaluationNeedsNoJournal) {
  fs::create_directories(folder_);
  std::ofstream(folder()) << "a file in the way";
  EXPECT_EQ(attempt(2, 4, 50, 3), 0);
  EXPECT_EQ(attempt(2, 4, 50, 3), 0);
}

// Scores a caption by its number, and counts its calls.
class CountingPass : public models::ScorePass {
 public:
  std::string name() const override { return "score"; }
  std::vector<models::InputSpec> inputs() const override { return {}; }
  void prepare(const models::HostBatch& batch, const models::Inputs&) const override {
    batch_ = batch;
  }
  void run(nn::Context&, const models::Inputs&, double* nll, double* weight) override {
    ++calls;
    for (int64_t i = 0; i < batch_.examples; ++i) {
      const int32_t number = batch_.features.at("labels").i32()[i];
      nll[i] = 1 / (1.0 + number);
      weight[i] = 1 + number % 3;
    }
  }
  int64_t calls = 0;

 private:
  mutable models::HostBatch batch_;
};

TEST_F(JournalTest, ACutEvaluatorHasTheValuesOfAnUncutOne) {
  const data::Dataset set = rig::numbers("labels", 41);
  std::vector<eval::Result> results(3);
  // Returns the batches of a rank.
  auto evaluate = [&](int ranks, bool keeps, int64_t most) {
    std::atomic<int64_t> calls = 0;
    rig::ThreadRanks(ranks).run_all([&](comm::Comm& world) {
      CountingPass pass;
      std::unique_ptr<eval::Journal> journal;
      if (keeps)
        journal = std::make_unique<eval::Journal>(world, folder(), "eval=x step=1", kIdentity);
      results[size_t(world.rank())] = eval::make_evaluator(rig::options("perplexity"))
                                          ->run({.world = world,
                                                 .dataset = set,
                                                 .loader = {},
                                                 .batch = 3,
                                                 .pass = &pass,
                                                 .forward = rig::runs_of(pass),
                                                 .interrupted = [&] { return pass.calls == most; },
                                                 .journal = journal.get()});
      if (world.rank() == 0) calls = pass.calls;
    });
    return calls.load();
  };
  EXPECT_EQ(evaluate(1, false, 100), 14);
  const auto uncut = results[0].values;
  EXPECT_EQ(evaluate(2, true, 4), 4);  // 24 examples
  EXPECT_TRUE(results[0].interrupted && results[1].interrupted);
  EXPECT_EQ(evaluate(1, true, 2), 2);  // 30 examples
  EXPECT_EQ(evaluate(3, true, 100), 2);
  for (const eval::Result& result : results) EXPECT_EQ(result.values, uncut);
  EXPECT_EQ(evaluate(1, true, 100), 0);
  EXPECT_EQ(results[0].values, uncut);
}

}  // namespace
