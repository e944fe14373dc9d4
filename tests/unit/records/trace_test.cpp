// SPDX-License-Identifier: Apache-2.0
// Traces: the spans of all threads, the file, and the windows of steps.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.hpp"
#include "base/thread_scope.hpp"
#include "config/all.hpp"
#include "io/files.hpp"
#include "records/span_buffers.hpp"
#include "records/trace_file.hpp"
#include "records/trace_options.hpp"

namespace {

using base::Span;
using base::SpanKind;
using records::TracedSpan;
using records::TracedThread;

// Collects within a scope.
struct Collecting {
  Collecting() { records::collect_spans(true); }
  ~Collecting() { records::collect_spans(false); }
};

TEST(SpanBuffers, NoSpanOfAnyThreadIsLostWhileAnotherTakesThem) {
  base::register_main_thread();
  constexpr int kThreads = 4, kSpans = 30000;
  std::map<std::string, std::vector<int64_t>> numbers;
  auto take = [&] {
    records::take_spans([&](const TracedThread& thread, std::span<const TracedSpan> spans) {
      for (const TracedSpan& s : spans) numbers[thread.name].push_back(s.number);
    });
  };
  const Collecting on;
  {
    std::atomic<int> running{kThreads};
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t)
      threads.push_back(base::thread("writer " + std::to_string(t), [&] {
        for (int i = 0; i < kSpans; ++i) const Span span("counted", i);
        --running;
      }));
    while (running > 0) take();
  }
  take();
  ASSERT_EQ(numbers.size(), size_t(kThreads));
  for (const auto& [name, all] : numbers) {
    ASSERT_EQ(all.size(), size_t(kSpans)) << name;
    for (int i = 0; i < kSpans; ++i) ASSERT_EQ(all[size_t(i)], i) << name;
  }
  EXPECT_EQ(records::spans_lost(), 0);
}

TEST(SpanBuffers, ASpanTellsItsWorkAndAnExchangeItsCall) {
  base::register_main_thread();
  std::vector<TracedSpan> found;
  auto take = [&] {
    found.clear();
    records::take_spans([&](const TracedThread&, std::span<const TracedSpan> spans) {
      found.insert(found.end(), spans.begin(), spans.end());
    });
  };
  const int64_t before = base::now_ns();
  {
    const Collecting on;
    base::TimedSpan span("gemm", SpanKind::op);
    base::ExchangeSpan exchange;
    exchange.begin({"all_reduce", "fsdp", 3, 1024});
    exchange.end();
    span.end_s(7, 8);
  }
  { const Span after("not collected"); }
  take();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].name.words(), base::SpanName("gemm").words());
  EXPECT_EQ(found[0].flops, 7);
  EXPECT_EQ(found[0].bytes, 8);
  EXPECT_GE(found[0].begin_ns, before);
  EXPECT_LE(found[0].begin_ns + found[0].ns, base::now_ns());
  const auto exchanges = records::take_exchanges();
  ASSERT_EQ(exchanges.size(), 1u);
  EXPECT_EQ(exchanges[0].kind, "all_reduce");
  EXPECT_EQ(exchanges[0].group, "fsdp");
  EXPECT_EQ(exchanges[0].count, 1024);
  EXPECT_GE(exchanges[0].begin_ns, found[0].begin_ns);
}

class TraceFiles : public testing::Test {
 protected:
  TraceFiles() {
    base::register_main_thread();
    EXPECT_NE(::mkdtemp(folder_.data()), nullptr);
  }
  ~TraceFiles() override { std::filesystem::remove_all(folder_); }
  nlohmann::json read() const { return nlohmann::json::parse(io::read_file(path())); }
  std::string path() const { return records::trace_path(folder_, 3, 1); }

 private:
  std::string folder_ = testing::TempDir() + "trainer_trace_XXXXXX";
};

TEST_F(TraceFiles, SpansThatTheWindowCutsAreWholeInTheFile) {
  base::keep_spans();
  {
    const Span before("begun before", 5);
    const Span within("within that");
    const int64_t begin = base::now_ns();
    records::TraceFile file(
        path(),
        {.rank = 1, .ranks = 2, .host = "a \"host\"", .begin_ns = begin, .shift_ns = begin - 1000});
    const Collecting on;
    { const Span whole("whole", 6, SpanKind::load); }
    file.add_step(3, begin, base::now_ns());
    const Span after("not ended");
    records::collect_spans(false);
    file.close("the test ends");
  }
  base::keep_spans(false);
  const nlohmann::json events = read();
  std::vector<std::string> got;
  for (const auto& e : events)
    if (e["ph"] == "X" || e["ph"] == "B" || e["ph"] == "E") {
      EXPECT_EQ(e["pid"], 1000001);
      EXPECT_EQ(e["tid"], 1);
      EXPECT_GE(e["ts"].get<double>(), 1.0);
      got.push_back(e["ph"].get<std::string>() + " " + e.value("name", ""));
    }
  EXPECT_EQ(got, (std::vector<std::string>{"B begun before", "B within that", "X whole step",
                                           "X whole", "X not ended", "E ", "E "}));
  EXPECT_EQ(events.front()["args"]["host"], "a \"host\"");
  EXPECT_EQ(events.back()["args"]["reason"], "the test ends");
}

TEST_F(TraceFiles, ExchangesThatRunAtOneTimeHaveRowsOfTheirOwn) {
  const int64_t begin = base::now_ns();
  records::TraceFile file(path(), {.begin_ns = begin, .shift_ns = begin});
  {
    const Collecting on;
    std::array<base::ExchangeSpan, 3> exchanges;
    exchanges[0].begin({"all_reduce", "fsdp", 0, 10});
    exchanges[1].begin({"all_gather", "fsdp", 0, 20});
    exchanges[0].end();
    exchanges[2].begin({"all_reduce", "world", 0, 30});
    exchanges[1].end();
    exchanges[2].end();
  }
  file.add_step(1, begin, base::now_ns());
  file.close("");
  std::vector<int> rows;
  int arrows = 0;
  for (const auto& e : read()) {
    if (e["ph"] == "X" && e["cat"] == "exchange") {
      rows.push_back(e["tid"].get<int>() % 1000);
      EXPECT_EQ(e["args"]["bytes"], 4 * e["args"]["count"].get<int>());
    }
    arrows += e["ph"] == "s" || e["ph"] == "f";
  }
  EXPECT_EQ(rows, (std::vector<int>{0, 1, 0}));
  EXPECT_EQ(arrows, 6);
}

TEST(TraceOptions, WindowsDoNotOverlap) {
  records::TraceOptions options;
  auto firsts = [&] {
    std::vector<int64_t> out;
    for (const auto& window : options.windows()) {
      EXPECT_EQ(window.last, window.first + options.length - 1);
      out.push_back(window.first);
    }
    return out;
  };
  EXPECT_EQ(firsts(), std::vector<int64_t>{3});
  options.steps = {9, 1, 4, 6, 1};
  EXPECT_EQ(firsts(), (std::vector<int64_t>{1, 4, 9}));
  EXPECT_EQ(options.left_out(), "6");
  options.steps = {};
  EXPECT_TRUE(firsts().empty());
  EXPECT_EQ(options.left_out(), "");
}

// [profile] of a deck.
struct Profile {
  records::TraceOptions trace;
  void bind(config::Table& t) { t.table("profile", trace, "traces"); }
};

TEST(TraceOptions, RanksAreAListOrAll) {
  auto read = [](const std::string& line, std::string& problem) {
    Profile root;
    const config::Deck deck({"run.toml", "[profile]\n" + line, {}}, root);
    problem = deck.problems().any() ? deck.problems().lines.front() : "";
    if (problem.empty()) {
      Profile again;
      const config::Deck resolved({"run.toml", deck.resolved(), {}}, again);
      EXPECT_EQ(again.trace.ranks, root.trace.ranks);
    }
    return root.trace;
  };
  std::string problem;
  EXPECT_TRUE(read("", problem).traces(0));
  EXPECT_FALSE(read("", problem).traces(1));
  EXPECT_TRUE(read("ranks = [2, 5]", problem).traces(5));
  const auto all = read("ranks = \"all\"", problem);
  EXPECT_EQ(problem, "");
  EXPECT_TRUE(config::is_all(all.ranks));
  EXPECT_TRUE(all.traces(12345));
  read("ranks = \"every\"", problem);
  EXPECT_EQ(problem,
            "run.toml:2: profile.ranks: expected a list of integers or \"all\", found the string "
            "\"every\"");
  read("ranks = [-1]", problem);
  EXPECT_NE(problem.find("must be >= 0"), std::string::npos) << problem;
  EXPECT_NE(config::describe([](config::Table& t) { Profile().bind(t); }, "profile.ranks")
                .find(">= 0 or \"all\""),
            std::string::npos);
}

}  // namespace
