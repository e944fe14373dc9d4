// SPDX-License-Identifier: Apache-2.0
// The metrics files of a run with several attempts: killed, continued from an earlier step, begun
// again. Curves have one value a step, no row is lost, and both files agree.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "base/error.hpp"
#include "io/h5.hpp"
#include "records/metrics.hpp"

namespace {

using Column = std::vector<double>;

class MetricAttempts : public testing::Test {
 protected:
  MetricAttempts() {
    if (!::mkdtemp(directory_.data())) std::abort();
    jsonl_ = directory_ + "/metrics.jsonl";
    abandoned_ = directory_ + "/metrics.abandoned.jsonl";
  }
  ~MetricAttempts() override { std::filesystem::remove_all(directory_); }

  Column column(const std::string& name) {
    return io::H5File::open(directory_ + "/metrics.h5").read<double>(name);
  }
  static int64_t lines(const std::string& path) {
    const std::string text = io::exists(path) ? io::read_file(path) : "";
    return std::count(text.begin(), text.end(), '\n');
  }
  // Attempt 1 writes steps 1 to 10 and two evaluations. It is killed while it writes step 11.
  void killed_attempt() {
    const pid_t child = ::fork();
    if (child == 0) {
      records::Metrics m(directory_, 0, 1, true, {}, false, declared_);
      m.eval_row("val", 0, {{"perplexity", 9}});
      for (int64_t step = 1; step <= 10; ++step)
        m.train_row(step, {{"loss", 1.0 / double(step)},
                           {"l2_grads[a/.*]", double(step)},
                           {"mfu", step == 3 ? std::nan("") : 0.5}});
      m.eval_row("val", 10, {{"perplexity", 5}});
      ::kill(::getpid(), SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    io::File(jsonl_, io::File::Mode::append).append("{\"kind\":\"train\",\"step\":11,\"lo");
  }
  // Returns the text of the internal error that `write` raises.
  template <class Write>
  static std::string refused(Write write) {
    try {
      write();
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::Exit::internal);
      return e.what();
    }
    return "no error";
  }

  std::string directory_ = testing::TempDir() + "metric_attempts_XXXXXX";
  const records::DeclaredMetrics declared_ = {
      {records::kTrainRows, {{"loss", "nats/token", "declared by a model"}}},
      {"/eval/val", {{"perplexity", "nats/caption", "declared by an evaluator"}}}};
  std::string jsonl_, abandoned_;
};

TEST_F(MetricAttempts, RowsOfAKilledAttemptAreThere) {
  killed_attempt();
  EXPECT_EQ(lines(jsonl_), 1 + 10 + 2);  // each row goes to the system at once
  records::Metrics m(directory_, 6, 1, true, {}, false, declared_);
  EXPECT_EQ(m.attempt(), 2);
  EXPECT_TRUE(m.has_eval("val", 0));
  EXPECT_FALSE(m.has_eval("val", 10));
  // metrics.h5 can be read while the run goes on.
  EXPECT_EQ(column("/train/step"), (Column{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(column("/train/loss")[4], 1.0 / 5);
  EXPECT_TRUE(std::isnan(column("/train/mfu")[2]));
  EXPECT_EQ(column("/train/l2_grads[a~.*]")[5], 6);
  EXPECT_EQ(lines(abandoned_), 4 + 1 + 1);  // steps 7 to 10, an evaluation, the torn line
  EXPECT_NE(io::read_file(abandoned_).find("\"attempt\":1"), std::string::npos);
}

TEST_F(MetricAttempts, ASecondAttemptContinuesTheCurves) {
  killed_attempt();
  {
    records::Metrics m(directory_, 6, 1, true, {}, false, declared_);
    m.train_row(7, {{"loss", 70}});
    m.eval_row("val", 7, {{"perplexity", 4}});
    m.eval_row("val", 7, {{"perplexity", 3}});  // the last value of a step holds
    EXPECT_TRUE(m.has_eval("val", 7));
  }
  EXPECT_EQ(column("/train/loss"), (Column{1, 1.0 / 2, 1.0 / 3, 1.0 / 4, 1.0 / 5, 1.0 / 6, 70}));
  EXPECT_EQ(column("/eval/val/perplexity"), (Column{9, 3}));
  EXPECT_EQ(column("/start/attempt"), (Column{1, 2}));
  io::H5File file = io::H5File::open(directory_ + "/metrics.h5");
  auto text = [&](const char* path, const char* name) {
    return std::get<std::string>(*file.attribute(path, name));
  };
  EXPECT_EQ(text("/train/loss", "unit"), "nats/token");
  EXPECT_EQ(text("/eval/val/perplexity", "unit"), "nats/caption");
  EXPECT_EQ(text("/train/l2_grads[a~.*]", "name"), "l2_grads[a/.*]");
}

// A crash can leave the abandoned rows written and the other two files as they were.
TEST_F(MetricAttempts, RowsThatAreMovedTwiceCountOnce) {
  killed_attempt();
  { records::Metrics m(directory_, 6, 1, true, {}, false, declared_); }
  const std::string before = io::read_file(jsonl_),
                    before_h5 = io::read_file(directory_ + "/metrics.h5");
  { records::Metrics m(directory_, 2, 1, true, {}, false, declared_); }
  const int64_t moved = lines(abandoned_);
  io::write_file_atomically(jsonl_, before);
  io::write_file_atomically(directory_ + "/metrics.h5", before_h5);
  { records::Metrics m(directory_, 2, 1, true, {}, false, declared_); }
  EXPECT_EQ(lines(abandoned_), moved);
  EXPECT_EQ(column("/train/step"), (Column{1, 2}));
}

TEST_F(MetricAttempts, ARunFromTheBeginningAbandonsAllRows) {
  killed_attempt();
  {
    records::Metrics m(directory_, 0, 1, true, {}, false, declared_);
    EXPECT_EQ(m.attempt(), 2);
  }
  io::H5File file = io::H5File::open(directory_ + "/metrics.h5");
  EXPECT_FALSE(file.exists("/train"));
  EXPECT_FALSE(file.exists("/eval"));  // a new run evaluates before its first step again
  EXPECT_TRUE(file.exists("/start"));
  EXPECT_EQ(lines(abandoned_), 10 + 2 + 1);
}

TEST_F(MetricAttempts, ARowThatNoTableDeclaresIsRefused) {
  records::Metrics m(directory_, 0, 1, true, {});
  EXPECT_NE(refused([&] {
              m.train_row(1, {{"los", 1}});
            }).find("neither a measure of the model nor in train_metrics"),
            std::string::npos);
  EXPECT_NE(refused([&] {
              m.eval_row("val", 1, {{"perplexity", 1}});
            }).find("perplexity is neither the evaluator's nor in eval_metrics"),
            std::string::npos);
}

TEST_F(MetricAttempts, OtherRanksWriteNothing) {
  records::Metrics silent(directory_, 0, 1, false, {});
  silent.train_row(1, {{"loss", 1}});
  silent.flush();
  EXPECT_TRUE(io::list_directory(directory_).empty());
}

}  // namespace
