// SPDX-License-Identifier: Apache-2.0
// Tests metrics.jsonl and metrics.h5. A row is read from either file, and a dropped row leaves a
// trace.
#include "records/metrics.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <memory>

#include "base/text.hpp"
#include "io/h5.hpp"

namespace {

using Steps = std::vector<double>;

class MetricFiles : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = testing::TempDir() + "trainer_metrics_XXXXXX";
    ASSERT_NE(::mkdtemp(directory_.data()), nullptr);
    jsonl_ = directory_ + "/metrics.jsonl";
    h5_ = directory_ + "/metrics.h5";
    abandoned_ = directory_ + "/metrics.abandoned.jsonl";
  }
  void TearDown() override {
    std::string command = "rm -rf '" + directory_ + "'";
    ASSERT_EQ(std::system(command.c_str()), 0);
  }

  std::unique_ptr<records::Metrics> open(int64_t restored_step, double flush_s = 30) {
    records::LogOptions options;
    options.flush_s = flush_s;
    records::DeclaredMetrics declared;
    declared["/eval/val"] = {
        {"perplexity", "nats/caption", "what a captioner's evaluator says of it"}};
    return std::make_unique<records::Metrics>(directory_, restored_step, 1, true, options, false,
                                              declared);
  }
  static void write(records::Metrics& m, int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; ++step) {
      m.train_row(step, {{"loss", 1.0 / double(step)}, {"uptime_s", double(step)}});
      if (step % 5 == 0) m.eval_row("val", step, {{"perplexity", double(step) / 3}});
    }
  }
  // Makes two attempts: steps 1 to 12, then from step 10 on to step 20, with an evaluation every
  // five steps.
  void make_run() {
    write(*open(0), 1, 12);
    write(*open(10), 11, 20);
  }
  Steps column(const std::string& name) {
    io::H5File file = io::H5File::open(h5_);
    return file.exists(name) ? file.read<double>(name) : Steps{};
  }
  std::vector<std::string> lines(const std::string& path) {
    if (!io::exists(path)) return {};
    std::vector<std::string> out = base::split(io::read_file(path), '\n');
    EXPECT_EQ(out.back(), "") << path << ": the last line has no end";
    out.pop_back();
    return out;
  }
  void put(const std::vector<std::string>& all) {
    io::write_file_atomically(jsonl_, base::join(all, "\n") + "\n");
  }
  static Steps count_to(int64_t last) {
    Steps all;
    for (int64_t step = 1; step <= last; ++step) all.push_back(double(step));
    return all;
  }

  // Checks that both files hold steps 1 to `last` once each, with the written values, and the
  // attempts in their order.
  void expect_whole(int64_t last, const Steps& attempts) {
    EXPECT_EQ(column("/train/step"), count_to(last));
    Steps loss = column("/train/loss");
    ASSERT_EQ(int64_t(loss.size()), last);
    for (int64_t step = 1; step <= last; ++step)
      EXPECT_EQ(loss[size_t(step - 1)], 1.0 / double(step));
    Steps evals = column("/eval/val/step");
    EXPECT_EQ(int64_t(evals.size()), last / 5);
    EXPECT_EQ(column("/start/attempt"), attempts);
    Steps train, eval, start;
    for (const std::string& line : lines(jsonl_)) {
      std::optional<records::MetricRow> row = records::metric_row_of(line);
      ASSERT_TRUE(row) << line;
      if (row->group == "/train") {
        train.push_back(double(row->step));
        EXPECT_EQ(row->values[0].second, 1.0 / double(row->step)) << line;
      } else if (row->group == "/start") {
        for (const auto& [name, value] : row->values)
          if (name == "attempt") start.push_back(value);
        // An attempt's rows come after its start, because readers of the newest attempt rely on it.
        EXPECT_TRUE(train.empty() || train.back() <= double(row->step) || row->step == last)
            << line;
      } else {
        eval.push_back(double(row->step));
        EXPECT_EQ(row->values[0].second, double(row->step) / 3) << line;
      }
    }
    EXPECT_EQ(train, count_to(last)) << "in metrics.jsonl";
    EXPECT_EQ(eval, evals);
    EXPECT_EQ(start, attempts);
  }

  std::string directory_, jsonl_, h5_, abandoned_;
};

class MetricHarm : public MetricFiles {};

TEST_F(MetricHarm, either_file_makes_the_other_whole) {
  const std::string garbage = "{\"kind\":\"train\",\"step\":7,\"lo\xffss\":";
  auto all = [&] { return lines(jsonl_); };
  auto keep = [&](size_t first, size_t last) {
    std::vector<std::string> some = all();
    put({some.begin() + long(first), some.begin() + long(std::min(last, some.size()))});
  };
  auto replace = [&](size_t line, const std::string& text) {
    std::vector<std::string> some = all();
    some.at(line) = text;
    put(some);
  };
  struct Case {
    const char* name;
    std::function<void()> harm;
    std::vector<std::string> aside;
  };
  const std::vector<Case> cases = {
      {"nothing", [] {}, {}},
      {"no jsonl", [&] { io::remove_file(jsonl_); }, {}},
      {"empty jsonl", [&] { io::write_file_atomically(jsonl_, ""); }, {}},
      {"jsonl keeps its head", [&] { keep(0, 9); }, {}},
      {"jsonl keeps its tail", [&] { keep(9, 100); }, {}},
      {"jsonl keeps its middle", [&] { keep(4, 20); }, {}},
      {"jsonl cut within a line",
       [&] { io::File(jsonl_, io::File::Mode::write).truncate(300); },
       {"?"}},
      {"garbage for a row", [&] { replace(5, garbage); }, {garbage}},
      {"garbage for the second start", [&] { replace(14, "???"); }, {"???"}},
      {"garbage at the end",
       [&] { io::File(jsonl_, io::File::Mode::append).append(garbage + "\n" + garbage); },
       {garbage}},
      {"zeros at the end",
       [&] { io::File(jsonl_, io::File::Mode::append).append(std::string(20, '\0')); },
       {std::string(20, '\0')}},
      {"no h5", [&] { io::remove_file(h5_); }, {}},
      {"h5 is garbage", [&] { io::write_file_atomically(h5_, "no HDF5 file"); }, {}},
      {"h5 is cut", [&] { io::File(h5_, io::File::Mode::write).truncate(5000); }, {}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    TearDown();
    SetUp();
    make_run();
    ASSERT_EQ(all().size(), 2u + 20 + 4) << io::read_file(jsonl_);
    ASSERT_EQ(lines(abandoned_).size(), 2u);
    c.harm();
    open(20);
    expect_whole(20, {1, 2, 3});
    std::vector<std::string> aside = lines(abandoned_);
    ASSERT_EQ(aside.size(), 2 + c.aside.size()) << base::join(aside, "\n");
    for (size_t i = 0; i < c.aside.size(); ++i)
      EXPECT_TRUE(c.aside[i] == "?" || aside[2 + i] == c.aside[i]) << aside[2 + i];
    // Another start finds nothing to repair, and moves no row twice.
    const std::vector<std::string> before = all();
    open(20);
    EXPECT_EQ(all().size(), before.size() + 1);
    EXPECT_EQ(lines(abandoned_), aside);
  }
}

TEST_F(MetricHarm, a_damaged_h5_is_kept_aside) {
  make_run();
  io::write_file_atomically(h5_, "no HDF5 file");
  open(20);
  EXPECT_EQ(io::read_file(directory_ + "/metrics.abandoned.h5"), "no HDF5 file");
  io::write_file_atomically(h5_, "nor this");
  open(20);
  EXPECT_EQ(io::read_file(directory_ + "/metrics.abandoned.2.h5"), "nor this");
}

TEST_F(MetricHarm, rows_past_the_restored_step_go_aside_from_either_file) {
  for (bool remove : {false, true}) {
    SCOPED_TRACE(remove);
    TearDown();
    SetUp();
    make_run();
    if (remove) io::remove_file(jsonl_);
    open(15);
    expect_whole(15, {1, 2, 3});
    Steps moved;
    for (const std::string& line : lines(abandoned_)) {
      std::optional<records::MetricRow> row = records::metric_row_of(line);
      ASSERT_TRUE(row) << line;
      EXPECT_EQ(row->values.back().first, "attempt");
      EXPECT_EQ(row->values.back().second,
                row->step == 11 || (row->step == 12 && moved.size() < 2) ? 1 : 2)
          << line;
      if (row->group == "/train") moved.push_back(double(row->step));
    }
    EXPECT_EQ(moved, (Steps{11, 12, 16, 17, 18, 19, 20}));
    // Attempt 2 loses the 5 seconds after an uptime of 15 seconds.
    EXPECT_EQ(open(15)->lost_s(2, 15), 5);
  }
}

// The other file is older than the rewind. Its rows are abandoned and must not come back, even if
// the log has no such rows.
TEST_F(MetricHarm, rows_of_a_past_that_was_left_do_not_come_back) {
  write(*open(0), 1, 12);
  const std::string old = io::read_file(h5_);
  {
    auto m = open(4);
    for (int64_t step : {6, 8, 10, 12}) m->train_row(step, {{"loss", 100.0 + double(step)}});
  }
  const std::vector<std::string> aside = lines(abandoned_);
  io::write_file_atomically(h5_, old);  // as if it could not be written since then
  open(12);
  EXPECT_EQ(column("/train/step"), (Steps{1, 2, 3, 4, 6, 8, 10, 12}));
  EXPECT_EQ(column("/train/loss").back(), 112);
  EXPECT_EQ(column("/eval/val/step"), Steps{});
  EXPECT_EQ(lines(abandoned_), aside);
}

// The log is an older copy from before the rewind. Abandoned rows are not counted twice, and do not
// come back.
TEST_F(MetricHarm, an_older_copy_of_the_log_is_put_back) {
  write(*open(0), 1, 12);
  const std::string old = io::read_file(jsonl_);
  {
    auto m = open(4);
    for (int64_t step : {6, 8}) m->train_row(step, {{"loss", 100.0 + double(step)}});
  }
  const std::vector<std::string> aside = lines(abandoned_);
  EXPECT_EQ(aside.size(), 8u + 2);  // steps 5 to 12, evaluations at 5 and 10
  io::write_file_atomically(jsonl_, old);
  open(8);
  EXPECT_EQ(column("/train/step"), (Steps{1, 2, 3, 4, 6, 8}));
  EXPECT_EQ(column("/train/loss").back(), 108);
  EXPECT_EQ(column("/start/attempt"), (Steps{1, 2, 3}));
  EXPECT_EQ(lines(abandoned_), aside);
}

TEST_F(MetricHarm, both_files_missing) {
  make_run();
  io::remove_file(jsonl_);
  io::remove_file(h5_);
  {
    auto m = open(20);
    write(*m, 21, 22);
  }
  EXPECT_EQ(column("/train/step"), (Steps{21, 22}));
  EXPECT_EQ(lines(jsonl_).size(), 3u);
  open(0);
  EXPECT_EQ(column("/train/step"), Steps{});
  EXPECT_EQ(lines(abandoned_).size(), 4u);
}

// The next flush notices each change under a running job, and makes the file again with all rows.
TEST_F(MetricHarm, files_that_change_under_a_job_are_made_again) {
  const std::vector<std::pair<const char*, std::function<void()>>> cases = {
      {"jsonl removed", [&] { io::remove_file(jsonl_); }},
      {"jsonl replaced", [&] { io::write_file_atomically(jsonl_, "{\"kind\":\"note\"}\n"); }},
      {"jsonl emptied", [&] { io::File(jsonl_, io::File::Mode::create); }},
      {"jsonl cut", [&] { io::File(jsonl_, io::File::Mode::write).truncate(100); }},
      {"jsonl grown",
       [&] { io::File(jsonl_, io::File::Mode::append).append("a line of someone else"); }},
      {"h5 removed", [&] { io::remove_file(h5_); }},
      {"h5 replaced", [&] { io::write_file_atomically(h5_, "no HDF5 file"); }},
      {"both removed",
       [&] {
         io::remove_file(jsonl_);
         io::remove_file(h5_);
       }},
      {"directory removed",
       [&] { ASSERT_EQ(std::system(("rm -rf '" + directory_ + "'").c_str()), 0); }},
  };
  for (const auto& [name, harm] : cases)
    for (bool more : {false, true})
      for (bool at_the_end : {false, true}) {
        SCOPED_TRACE(fmt::format("{}, more rows {}, at the end {}", name, more, at_the_end));
        TearDown();
        SetUp();
        write(*open(0), 1, 12);
        auto m = open(12);
        write(*m, 13, 17);
        m->flush();
        harm();
        if (more) write(*m, 18, 20);
        if (!at_the_end) {
          m->flush();
          std::vector<std::string> now = lines(jsonl_);
          EXPECT_EQ(now.size(), more ? 2u + 20 + 4 : 2u + 17 + 3);
          EXPECT_EQ(column("/start/attempt"), (Steps{1, 2}));
        }
        m.reset();
        expect_whole(more ? 20 : 17, {1, 2});
        // Foreign lines are kept.
        const std::string other = directory_ + "/metrics.abandoned.other.jsonl";
        const bool foreign =
            std::string(name) == "jsonl replaced" || std::string(name) == "jsonl grown";
        EXPECT_EQ(io::exists(other), foreign);
        const std::string found = foreign ? io::read_file(other) : "";
        EXPECT_EQ(found.find("note") != found.npos || found.find("someone") != found.npos, foreign)
            << found;
      }
}

TEST_F(MetricHarm, a_job_that_lost_its_directory_writes_nothing) {
  auto m = open(0);
  write(*m, 1, 3);
  ASSERT_EQ(std::system(("rm -rf '" + directory_ + "'/*").c_str()), 0);
  m->let_go();
  m->train_row(4, {{"loss", 1}});
  m->flush();
  m.reset();
  EXPECT_TRUE(io::list_directory(directory_).empty());
}

// Another job can lock the directory while this one syncs its log. The metrics.h5 of that job must
// stay.
TEST_F(MetricHarm, the_directory_is_looked_at_again_before_h5_is_replaced) {
  auto m = open(0);
  write(*m, 1, 5);
  m->flush();
  int looks = 0;
  m->flush([&] { ++looks; });
  EXPECT_EQ(looks, 1) << "metrics.h5 belongs to this job";
  io::write_file_atomically(h5_, "of another job");
  write(*m, 6, 6);
  looks = 0;
  EXPECT_THROW(m->flush([&] {
    if (++looks == 2) base::fail(base::Exit::checkpoint, "another job has used it since");
  }),
               base::Error);
  EXPECT_EQ(io::read_file(h5_), "of another job");
}

// The disk accepts half a row. The half is cut off, the rows wait, and all of them are written when
// there is room.
TEST_F(MetricHarm, half_a_row_never_stays) {
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  auto m = open(0);
  write(*m, 1, 3);
  const std::string whole = io::read_file(jsonl_);
  rlimit small = before;
  small.rlim_cur = whole.size() + 20;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  write(*m, 4, 4);
  EXPECT_EQ(io::read_file(jsonl_), whole);
  write(*m, 5, 6);
  EXPECT_EQ(io::read_file(jsonl_), whole);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  write(*m, 7, 7);
  m.reset();
  expect_whole(7, {1});
}

}  // namespace
