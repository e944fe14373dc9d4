// SPDX-License-Identifier: Apache-2.0
// Tests the log of all starts of a run: how the end of a killed one is found, what is done again,
// and what it costs.
#include "job/attempt_log.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "base/flight_page.hpp"
#include "base/span.hpp"
#include "job/goodput.hpp"

namespace job {
namespace {

namespace fs = std::filesystem;

Spent spent(double setup, double training, double checkpoint = 0) {
  Spent out;
  out[Spent::setup] = setup;
  out[Spent::training] = training;
  out[Spent::checkpoint] = checkpoint;
  return out;
}

class AttemptLogTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = (fs::temp_directory_path() / fmt::format("attempts_{}", ::getpid())).string();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string file() const { return folder_ + "/attempts.jsonl"; }
  std::string flight() const { return folder_ + "/flight"; }

  // Writes what this process would leave: `seconds` were counted, and the last sign of life came at
  // `last_s` since 1970.
  void leave_flight(const Spent& seconds, double last_s, const char* phase, int64_t step) const {
    auto page = std::make_unique<base::FlightPage>();
    base::FlightPage::Head& head = page->head;
    head.magic = base::FlightPage::kMagic;
    head.pid = uint64_t(::getpid());
    head.step = uint64_t(step);
    head.unix_offset_ns = 500'000'000'000;
    head.alive_ns = uint64_t((last_s - 500) * 1e9);
    head.resident_kib = 2048;
    for (size_t i = 0; i < Spent::kKinds; ++i) head.spent_ns[i] = uint64_t(1e9 * seconds.by[i]);
    const base::SpanName name = base::SpanName::of(phase);
    for (size_t i = 0; i < head.phase.size(); ++i) head.phase[i] = name.words()[i];
    std::string bytes(base::kFlightBytes, '\0');
    std::memcpy(bytes.data(), page.get(), sizeof *page);
    io::write_file_atomically(flight(), bytes);
  }
  AttemptLog::Before killed() const { return {.left_by = "n:1 since then", .flight = flight()}; }

  // A start that saves at step 4 after 5 s, and is killed at step 7 after 9.5 s.
  void first_start() const {
    AttemptLog log(folder_, {}, 1000, "n", 2);
    EXPECT_EQ(log.goes_on({"random_init"}), 0);
    log.continues(1);
    log.saves(1, 4, spent(2, 3));
    leave_flight(spent(2, 5, 1), 1009.5, "train", 7);
  }

  std::string folder_;
};

TEST_F(AttemptLogTest, KilledStartEndsWithItsLastSignOfLife) {
  first_start();
  AttemptLog log(folder_, killed(), 1012, "n", 2);
  ASSERT_EQ(log.starts().size(), 2u);
  const StartRecord& first = log.starts()[0];
  EXPECT_EQ(first.how, "killed");
  EXPECT_EQ(first.exit, -1);
  EXPECT_DOUBLE_EQ(first.end_s, 1009.5);
  EXPECT_EQ(first.last_step, 7);
  EXPECT_NEAR(first.spent.total(), 9.5, 1e-6);
  EXPECT_NEAR(first.spent[Spent::training], 6.5, 1e-6);  // the phase gets what was not counted
  EXPECT_NE(first.reason.find("phase train, step 7; 2 MiB were resident"), std::string::npos)
      << first.reason;
  EXPECT_NEAR(log.idle_s(), 2.5, 1e-6);

  EXPECT_NEAR(log.goes_on({"checkpoint", 1, 4, 5.1}), 4.5, 1e-6);
  EXPECT_NEAR(log.redone_s(), 4.5, 1e-6);
  log.continues(2);
  EXPECT_NEAR(first.redone[Spent::training], 3.5, 1e-6);
  EXPECT_NEAR(first.redone[Spent::checkpoint], 1, 1e-6);
  EXPECT_EQ(first.redone_steps, 3);
  const Goodput g = goodput_of(log, spent(1, 4));
  EXPECT_NEAR(g.job_s, 14.5, 1e-6);
  EXPECT_NEAR(g.training_s, 7, 1e-6);
  EXPECT_NEAR(g.setup_s + g.training_s + g.redone_s, g.job_s, 1e-6);
  EXPECT_EQ(g.failures, 1);
  EXPECT_NEAR(g.failures_redone_s, 4.5, 1e-6);
  EXPECT_NEAR(g.failures_setup_s, 1, 1e-6);
  EXPECT_NEAR(g.idle_s, 2.5, 1e-6);
}

TEST_F(AttemptLogTest, NothingCountsTwiceWhenARunGoesBackFurther) {
  first_start();
  {
    AttemptLog log(folder_, killed(), 1012, "n", 2);
    log.goes_on({"checkpoint", 1, 4, 5.1});
    log.continues(2);
    log.saves(2, 8, spent(1, 2));
    log.ends("stopped", 75, "signal USR1", 9, spent(1, 3));
  }
  AttemptLog log(folder_, {.flight = flight()}, 1020, "n", 2);
  EXPECT_EQ(log.starts()[1].how, "stopped");
  EXPECT_EQ(log.starts()[1].exit, 75);
  EXPECT_DOUBLE_EQ(log.starts()[1].end_s, 1016);
  // Suppose that the checkpoint of step 8 is damaged. All of the second start is done again, and
  // what the first one did after step 4 stays as it was.
  EXPECT_NEAR(log.goes_on({"checkpoint", 1, 4, 5.1}), 4.5 + 4, 1e-6);
  EXPECT_NEAR(log.redone_s(), 4, 1e-6);
  log.continues(3);
  EXPECT_NEAR(log.starts()[0].redone.total(), 4.5, 1e-6);
  EXPECT_NEAR(log.starts()[1].redone.total(), 4, 1e-6);
  EXPECT_EQ(log.starts()[1].redone_steps, 5);
}

TEST_F(AttemptLogTest, RunThatBeginsAnewDoesAllAgain) {
  first_start();
  AttemptLog log(folder_, killed(), 1012, "n", 2);
  EXPECT_NEAR(log.goes_on({"random_init"}), 9.5, 1e-6);
  log.continues(2);
  EXPECT_NEAR(log.starts()[0].kept().total(), 0, 1e-6);
  EXPECT_EQ(log.starts()[0].redone_steps, 7);
}

TEST_F(AttemptLogTest, LostLineOfASaveIsMadeUpForByItsUptime) {
  {
    AttemptLog log(folder_, {}, 1000, "n", 2);
    log.goes_on({"random_init"});
    log.continues(1);
    leave_flight(spent(2, 5, 1), 1008, "train", 7);
  }
  AttemptLog log(folder_, killed(), 1012, "n", 2);
  EXPECT_NEAR(log.goes_on({"checkpoint", 1, 4, 6}), 2, 1e-6);
  log.continues(2);
  EXPECT_NEAR(log.starts()[0].redone[Spent::training], 2, 1e-6);
}

TEST_F(AttemptLogTest, RewindMovesTimeWithinItsStart) {
  AttemptLog log(folder_, {}, 1000, "n", 2);
  log.goes_on({"random_init"});
  log.continues(1);
  log.saves(1, 4, spent(2, 3));
  const Spent left = log.goes_back({"checkpoint", 1, 4, 5}, 2, spent(2, 6, 1));
  EXPECT_NEAR(left.total(), 9, 1e-6);
  EXPECT_NEAR(left[Spent::redone], 4, 1e-6);
  EXPECT_NEAR(left[Spent::training], 3, 1e-6);
  EXPECT_EQ(log.own().attempts, (std::vector<int64_t>{1, 2}));
}

TEST_F(AttemptLogTest, FailureHasItsReportAndAStartWithoutAFlightFileTheTimesOfItsFiles) {
  { AttemptLog log(folder_, {}, 1000, "n", 2); }
  AttemptLog log(folder_,
                 {.report = "rank=1 of 2 host=n step=3 phase=train exit=4: broken\nmemory\n",
                  .left_by = "n:1 since then, train step=3 since then",
                  .changed_s = 1004,
                  .flight = flight()},
                 1012, "n", 2);
  const StartRecord& first = log.starts()[0];
  EXPECT_EQ(first.how, "failed");
  EXPECT_EQ(first.exit, 4);
  EXPECT_EQ(first.reason, "rank=1 of 2 host=n step=3 phase=train exit=4: broken");
  EXPECT_DOUBLE_EQ(first.end_s, 1004);
  EXPECT_NEAR(first.spent[Spent::training], 4, 1e-6);
}

TEST_F(AttemptLogTest, LinesThatAreNoneChangeNothing) {
  first_start();
  const std::string text = io::read_file(file());
  io::write_file_atomically(file(),
                            "no line\n{\"kind\":7}\n[1]\n" + text + "{\"kind\":\"end\",\"st");
  AttemptLog log(folder_, killed(), 1012, "n", 2);
  EXPECT_EQ(log.starts().size(), 2u);
  EXPECT_EQ(log.starts()[0].how, "killed");
  EXPECT_EQ(io::read_file(file()).find("\"st\n"), std::string::npos);
}

TEST_F(AttemptLogTest, RemovedFileComesBackWhole) {
  AttemptLog log(folder_, {}, 1000, "n", 2);
  log.goes_on({"random_init"});
  fs::remove(file());
  log.keep();
  log.continues(1);
  AttemptLog next(folder_, {}, 1100, "n", 2);
  EXPECT_EQ(next.starts()[0].attempts, std::vector<int64_t>{1});
}

TEST_F(AttemptLogTest, KeepsFacts) {
  {
    AttemptLog log(folder_, {}, 1000, "n", 2);
    EXPECT_EQ(log.facts_before(), nullptr);
    log.has({{"env.A", "x\xff"}, {"mesh", "2 x 1"}});
  }
  { AttemptLog log(folder_, {}, 1100, "n", 2); }  // this start ends before it has facts
  AttemptLog log(folder_, {}, 1200, "n", 2);
  ASSERT_NE(log.facts_before(), nullptr);
  EXPECT_EQ(log.facts_before()->at("mesh"), "2 x 1");
}

}  // namespace
}  // namespace job
