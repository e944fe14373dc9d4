// SPDX-License-Identifier: Apache-2.0
// Spans and the flight page that keeps them.
#include "base/span.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/flight_page.hpp"
#include "base/thread_scope.hpp"

namespace {

using base::FlightPage;
using base::Span;
using base::SpanKind;

std::string text(const base::FlightName& name) {
  char out[33] = {};
  for (size_t i = 0; i < 4; ++i) {
    const uint64_t word = name[i].load();
    std::memcpy(out + 8 * i, &word, 8);
  }
  out[31] = '\0';
  return out;
}

const FlightPage::Thread& main_thread() {
  base::register_main_thread();
  return base::flight_page().threads[0];
}

TEST(Span, AThreadsOpenSpansAreKept) {
  const FlightPage::Thread& main = main_thread();
  const uint64_t begun = main.begun, depth = main.depth;
  {
    Span step("step", 12, SpanKind::step);
    Span wait("wait for a batch", SpanKind::wait);
    ASSERT_EQ(main.depth, depth + 2);
    EXPECT_EQ(text(main.open[depth].name), "step");
    EXPECT_EQ(main.open[depth].number, 12u);
    EXPECT_EQ(text(main.open[depth + 1].name), "wait for a batch");
    EXPECT_EQ(main.open[depth + 1].name[3].load() >> 56, uint64_t(SpanKind::wait));
    EXPECT_EQ(main.begun, begun + 1) << "a wait is no progress";
  }
  EXPECT_EQ(main.depth, depth);
}

TEST(Span, SpansDeeperThanThePageAreCounted) {
  const FlightPage::Thread& main = main_thread();
  const uint64_t depth = main.depth;
  std::vector<std::unique_ptr<Span>> spans;
  for (int i = 0; i < 3 * FlightPage::kDepth; ++i) spans.emplace_back(new Span("deep", i));
  EXPECT_EQ(main.depth, depth + 3 * FlightPage::kDepth);
  while (!spans.empty()) spans.pop_back();
  EXPECT_EQ(main.depth, depth);
}

TEST(Span, ThreadsTakePlacesAndGiveThemBack) {
  main_thread();
  auto places = [] {
    int taken = 0;
    for (const FlightPage::Thread& t : base::flight_page().threads) taken += t.tid != 0;
    return taken;
  };
  const int before = places();
  std::atomic<int> during{0};
  base::thread("loader 7", [&] { during = places(); }).join();
  EXPECT_EQ(during, before + 1);
  EXPECT_EQ(places(), before);
  // There are more threads than places. The other threads' spans are not kept in the page.
  std::atomic<int> started{0};
  {
    std::vector<std::jthread> many;
    for (int i = 0; i < 2 * FlightPage::kThreads; ++i)
      many.push_back(base::thread("many", [&] {
        Span span("work");
        for (++started; started < 2 * FlightPage::kThreads;) std::this_thread::yield();
      }));
  }
  EXPECT_EQ(places(), before);
}

TEST(Span, EndedSpansAndExchangesStayInTheMappedFile) {
  main_thread();
  base::keep_spans();
  char path[] = "/tmp/span_test_XXXXXX";
  const int file = ::mkstemp(path);
  ASSERT_EQ(::posix_fallocate(file, 0, off_t(base::kFlightBytes)), 0);
  ASSERT_STREQ(base::map_flight_page(file), "");
  FlightPage& page = base::flight_page();
  const uint64_t ended = page.head.spans, hash = page.head.calls_hash;
  { base::TimedSpan span("gemm", SpanKind::op); }
  base::ExchangeSpan exchange;
  {
    Span site("update");
    exchange.begin({"all_reduce", "fsdp", 3, 1024});
  }
  auto read = [&] {
    auto copy = std::make_unique<FlightPage>();
    EXPECT_EQ(::pread(file, static_cast<void*>(copy.get()), sizeof(FlightPage), 0),
              ssize_t(sizeof(FlightPage)));
    return copy;
  };
  auto in_file = read();
  EXPECT_EQ(text(in_file->spans[ended % FlightPage::kSpans].name), "gemm");
  EXPECT_EQ(in_file->spans[ended % FlightPage::kSpans].place.load() >> 8, ended + 1);
  const uint64_t call = in_file->head.exchanges;
  const FlightPage::Exchange& mine = in_file->exchanges[call % FlightPage::kExchanges];
  EXPECT_EQ(mine.call, call);
  EXPECT_EQ(mine.ns, 0u) << "it has not ended";
  EXPECT_EQ(mine.count, 1024u);
  EXPECT_EQ(text(mine.site), "update");
  EXPECT_NE(in_file->head.calls_hash, hash);
  std::thread([&] { exchange.end(); }).join();  // on another thread
  EXPECT_GT(read()->exchanges[call % FlightPage::kExchanges].ns, 0u);
  ::close(file);
  ::unlink(path);
}

TEST(Span, CallsInAnotherOrderHaveAnotherHash) {
  auto hash_of = [](std::vector<base::ExchangeSpan::Call> calls) {
    base::flight_page().head.calls_hash = 0;
    for (const auto& call : calls) {
      base::ExchangeSpan exchange;
      exchange.begin(call);
      exchange.end();
    }
    return base::flight_page().head.calls_hash.load();
  };
  const base::ExchangeSpan::Call a{"all_reduce", "fsdp", 0, 8}, b{"all_gather", "fsdp", 0, 8},
      longer{"all_reduce", "fsdp", 0, 9}, elsewhere{"all_reduce", "replica", 0, 8};
  const uint64_t hash = hash_of({a, b});
  EXPECT_EQ(hash, hash_of({a, b}));
  EXPECT_NE(hash, hash_of({b, a}));
  EXPECT_NE(hash, hash_of({longer, b}));
  EXPECT_NE(hash, hash_of({elsewhere, b}));
  EXPECT_NE(hash, hash_of({a}));
}

}  // namespace
