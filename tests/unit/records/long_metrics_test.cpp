// SPDX-License-Identifier: Apache-2.0
// Tests the metrics of long runs: whatever happens, both files are what they are if all rows are
// read, and a start reads little.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>

#include "base/text.hpp"
#include "io/h5.hpp"
#include "records/metrics.hpp"

namespace {

using Open = std::unique_ptr<records::Metrics>;

constexpr int64_t kSteps = records::kLongRows + 9000;

// Returns the bytes that this process has read so far.
int64_t bytes_read() {
  std::ifstream file("/proc/self/io");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  return std::strtoll(text.substr(text.find("rchar: ") + 7).c_str(), nullptr, 10);
}

// A run directory. `quick` = false: metrics.h5 is removed before each start, so that all rows are
// read.
class RunFolder {
 public:
  RunFolder(const std::string& directory, bool quick) : directory_(directory), quick_(quick) {
    io::make_directories(directory);
  }
  Open open(int64_t step) {
    metrics_.reset();
    return start(step);
  }
  // Ends the job as a kill does: what it would still write is lost.
  void kill() {
    const std::string h5 = io::exists(h5_path()) ? io::read_file(h5_path()) : "";
    const std::string lines = io::read_file(jsonl_path());
    metrics_.reset();
    io::write_file_atomically(jsonl_path(), lines);
    if (!h5.empty()) io::write_file_atomically(h5_path(), h5);
  }
  Open start(int64_t step) {
    if (!quick_ && io::exists(h5_path())) io::remove_file(h5_path());
    records::LogOptions options;
    options.flush_s = 1e9;
    records::DeclaredMetrics declared;
    declared["/eval/val"] = {{"perplexity", "nats/caption", "what a test says of it"}};
    declared["/train"] = {{"a/b", "1", "a name with a slash"}, {"late", "1", "not from the start"}};
    return std::make_unique<records::Metrics>(directory_, step, 1, true, options, false, declared);
  }
  void begin(int64_t step) {
    metrics_ = open(step);
    begun_ = step;
  }
  void end() { metrics_.reset(); }
  records::Metrics& metrics() { return *metrics_; }
  // An attempt's numbers differ from those of the others.
  void write(int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; ++step) {
      const double attempt = double(metrics().attempt());
      records::Metrics::Row row = {{"loss", attempt + 1.0 / double(step)},
                                   {"uptime_s", double(step - begun_)}};
      if (step % 1000 == 0) row.emplace_back("a/b", double(step));
      if (attempt > 1) row.emplace_back("late", attempt);
      metrics().train_row(step, row);
      if (step % 500 == 0) metrics().eval_row("val", step, {{"perplexity", double(step) / 3}});
    }
  }
  std::string h5_path() const { return directory_ + "/metrics.h5"; }
  std::string jsonl_path() const { return directory_ + "/metrics.jsonl"; }
  std::string abandoned_path() const { return directory_ + "/metrics.abandoned.jsonl"; }

  // Returns the lines of a file without the times of starts.
  static std::vector<std::string> lines(const std::string& path) {
    std::vector<std::string> all;
    if (!io::exists(path)) return all;
    for (std::string line : base::split(io::read_file(path), '\n')) {
      if (const size_t at = line.find("\"time\":"); at != line.npos)
        line.erase(at, line.find(',', at) - at);
      all.push_back(line);
    }
    return all;
  }
  std::map<std::string, std::vector<double>> columns() const {
    const io::H5File file = io::H5File::open(h5_path());
    std::map<std::string, std::vector<double>> all;
    for (const std::string& dataset : file.datasets())
      if (dataset != "/start/time") all[dataset] = file.read<double>(dataset);
    return all;
  }

 private:
  std::string directory_;
  bool quick_;
  int64_t begun_ = 0;
  Open metrics_;
};

bool same(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](double x, double y) {
           return x == y || (std::isnan(x) && std::isnan(y));
         });
}

class LongMetrics : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = testing::TempDir() + "trainer_long_XXXXXX";
    ASSERT_NE(::mkdtemp(directory_.data()), nullptr);
    quick_ = std::make_unique<RunFolder>(directory_ + "/quick", true);
    whole_ = std::make_unique<RunFolder>(directory_ + "/whole", false);
  }
  void TearDown() override {
    quick_.reset();
    whole_.reset();
    ASSERT_EQ(std::system(("rm -rf '" + directory_ + "'").c_str()), 0);
  }
  void both(const std::function<void(RunFolder&)>& work) {
    for (RunFolder* run : {quick_.get(), whole_.get()}) work(*run);
  }
  // Compares the files of both runs, whose jobs have ended.
  void expect_same() {
    EXPECT_TRUE(RunFolder::lines(quick_->jsonl_path()) == RunFolder::lines(whole_->jsonl_path()));
    EXPECT_TRUE(RunFolder::lines(quick_->abandoned_path()) ==
                RunFolder::lines(whole_->abandoned_path()));
    const auto quick = quick_->columns(), whole = whole_->columns();
    EXPECT_EQ(quick.size(), whole.size());
    for (const auto& [name, column] : whole) {
      ASSERT_TRUE(quick.contains(name)) << name;
      EXPECT_TRUE(same(quick.at(name), column)) << name;
    }
  }
  std::string directory_;
  std::unique_ptr<RunFolder> quick_, whole_;
};

TEST_F(LongMetrics, a_start_reads_little) {
  quick_->begin(0);
  quick_->write(1, kSteps);
  quick_->end();
  EXPECT_GE(io::H5File::open(quick_->h5_path()).info("/train/loss").offset, 0);
  int64_t before = bytes_read();
  quick_->begin(kSteps);
  // Evaluations, pieces of metrics.jsonl that prove that it is as it was, and its last line.
  EXPECT_LT(bytes_read() - before, int64_t{2} << 20);
  quick_->write(kSteps + 1, kSteps + 600);
  quick_->metrics().flush();
  quick_->write(kSteps + 601, kSteps + 700);
  quick_->kill();
  before = bytes_read();
  quick_->begin(kSteps + 300);  // before the end of metrics.h5
  EXPECT_LT(bytes_read() - before, int64_t{2} << 20);
  EXPECT_GT(io::read_file(quick_->jsonl_path()).size(), size_t{7} << 20);
}

TEST_F(LongMetrics, a_start_that_reads_little_leaves_the_same_files) {
  both([](RunFolder& run) {
    run.begin(0);
    run.write(1, kSteps);
    run.end();
    run.begin(kSteps);
    EXPECT_TRUE(run.metrics().has_eval("val", 1000));
    EXPECT_FALSE(run.metrics().has_eval("val", 1001));
    run.write(kSteps + 1, kSteps + 700);
    run.metrics().flush();
    run.write(kSteps + 701, kSteps + 900);
    run.kill();
    // Back behind what metrics.h5 has, then to before it, then once more without a metrics.h5 that
    // is newer.
    run.begin(kSteps + 800);
    EXPECT_EQ(run.metrics().lost_s(2, 800), 100);
    run.write(kSteps + 801, kSteps + 1000);
    run.kill();
    run.begin(kSteps - 3000);
    EXPECT_EQ(run.metrics().lost_s(3, 0), 200);
    run.write(kSteps - 2999, kSteps - 2500);
    run.kill();
    run.begin(kSteps - 2800);
    EXPECT_EQ(run.metrics().lost_s(4, 200), 300);
    run.write(kSteps - 2799, kSteps + 100);
    run.end();
  });
  expect_same();
}

TEST_F(LongMetrics, lines_that_are_lost_come_back) {
  both([](RunFolder& run) {
    run.begin(0);
    run.write(1, kSteps);
    run.end();
    std::string text = io::read_file(run.jsonl_path());
    text.resize(text.size() / 2);
    io::write_file_atomically(run.jsonl_path(), text);
  });
  // This run keeps its metrics.h5, from which the rows come.
  quick_->begin(kSteps);
  quick_->end();
  const auto columns = quick_->columns();
  EXPECT_EQ(columns.at("/train/step").size(), size_t(kSteps));
  EXPECT_EQ(columns.at("/train/step").back(), double(kSteps));
  EXPECT_EQ(RunFolder::lines(quick_->jsonl_path()).size(), size_t(kSteps + kSteps / 500 + 2 + 1));
}

TEST_F(LongMetrics, torn_and_foreign_lines_go_aside) {
  both([](RunFolder& run) {
    run.begin(0);
    run.write(1, kSteps);
    run.end();
    io::File file(run.jsonl_path(), io::File::Mode::append);
    file.append("no row\n{\"kind\":\"train\",\"step\":5");
    file.close();
    run.begin(kSteps);
    run.write(kSteps + 1, kSteps + 10);
    run.end();
  });
  expect_same();
  EXPECT_EQ(RunFolder::lines(quick_->abandoned_path()).size(), 3u);
}

TEST_F(LongMetrics, files_that_change_under_a_job_are_made_again) {
  both([](RunFolder& run) {
    run.begin(0);
    run.write(1, kSteps);
    run.end();
    run.begin(kSteps - 50);
    run.write(kSteps - 49, kSteps + 10);
    io::remove_file(run.jsonl_path());
    run.metrics().flush();
    EXPECT_EQ(RunFolder::lines(run.jsonl_path()).size(),
              size_t(kSteps + 10 + (kSteps + 10) / 500 + 2 + 1));
    run.write(kSteps + 11, kSteps + 20);
    io::remove_file(run.h5_path());
    run.metrics().flush();
    // A row that is not after the stored ones replaces one of them.
    run.metrics().train_row(77, {{"loss", 7.5}});
    run.end();
  });
  expect_same();
}

}  // namespace
