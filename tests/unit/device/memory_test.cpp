// SPDX-License-Identifier: Apache-2.0
// Tests buffers, the ledger and the two-ended arena. Memory that a plan measures must equal the
// real memory.
#include "device/memory.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <vector>

#include "base/random.hpp"

namespace {

using device::Arena;
using device::Buffer;
using device::DType;
using device::Kind;
using device::Ledger;
using device::View;

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 64 == 0; }

TEST(Types, Sizes) {
  EXPECT_EQ(size_of(DType::f32), 4);
  EXPECT_EQ(size_of(DType::bf16), 2);
  EXPECT_EQ(size_of(DType::f16), 2);
  EXPECT_EQ(size_of(DType::f64), 8);
  EXPECT_EQ(size_of(DType::i32), 4);
  EXPECT_EQ(size_of(DType::i64), 8);
  EXPECT_EQ(size_of(DType::u8), 1);
}

TEST(View, SlicesWithinBoundsAndTypes) {
  float x[10] = {};
  View v = device::view(x, 10);
  EXPECT_EQ(v.bytes(), 40);
  EXPECT_EQ(v.slice(3, 4).f32(), x + 3);
  EXPECT_EQ(v.slice(3, 4).count, 4);
  EXPECT_EQ(v.slice(10, 0).count, 0);
  EXPECT_THROW(v.slice(3, 8), base::Error);
  EXPECT_THROW(v.slice(-1, 2), base::Error);
  EXPECT_THROW(v.slice(2, -1), base::Error);
  EXPECT_THROW(v.f64(), base::Error);
  EXPECT_THROW(v.i32(), base::Error);
  EXPECT_TRUE(View{}.none());
  EXPECT_FALSE(v.none());
}

TEST(Ledger, KeepsNowAndPeakPerCategory) {
  Ledger l;
  EXPECT_EQ(l.peak_of("weights"), 0);
  l.add("weights", 100);
  l.add("weights", 50);
  l.add("weights", -120);
  l.add("weights", 60);
  l.add("batch", 7);
  EXPECT_EQ(l.entries().at("weights").now, 90);
  EXPECT_EQ(l.entries().at("weights").peak, 150);
  EXPECT_EQ(l.peak_of("batch"), 7);
  EXPECT_EQ(l.total_peak(), 157);
  EXPECT_EQ(l.entries().size(), 2u);
}

TEST(Buffer, IsAlignedZeroedAndRoundedUp) {
  Ledger l;
  for (int64_t bytes : {1, 63, 64, 65, 4095, 1000000}) {
    {  // the old contents of the memory must not show
      Buffer dirty(Kind::cpu, l, "x", bytes);
      std::memset(dirty.data(), 0xff, size_t(bytes));
    }
    Buffer b(Kind::cpu, l, "x", bytes);
    EXPECT_TRUE(aligned(b.data()));
    EXPECT_GE(b.bytes(), bytes);
    EXPECT_LT(b.bytes(), bytes + 64);
    EXPECT_EQ(b.bytes() % 64, 0);
    for (int64_t i = 0; i < b.bytes(); ++i)
      ASSERT_EQ(static_cast<char*>(b.data())[i], 0) << i << " of " << bytes;
    EXPECT_EQ(l.entries().at("x").now, b.bytes());
    EXPECT_EQ(b.view(DType::f32).count, b.bytes() / 4);
    EXPECT_EQ(b.view(DType::bf16).count, b.bytes() / 2);
  }
  EXPECT_EQ(l.entries().at("x").now, 0);
}

TEST(Buffer, OfNothingHasNoBytes) {
  Ledger l;
  Buffer b(Kind::cpu, l, "x", 0);
  EXPECT_EQ(b.bytes(), 0);
  EXPECT_EQ(l.peak_of("x"), 0);
  EXPECT_THROW(Buffer(Kind::cpu, l, "x", -1), base::Error);
}

TEST(Buffer, MovesWithItsEntryInTheLedger) {
  Ledger l;
  Buffer a(Kind::cpu, l, "a", 128);
  void* memory = a.data();
  Buffer b(std::move(a));
  EXPECT_EQ(b.data(), memory);
  EXPECT_EQ(l.entries().at("a").now, 128);
  Buffer c(Kind::cpu, l, "c", 64);
  c = std::move(b);  // c frees its old memory
  EXPECT_EQ(c.data(), memory);
  EXPECT_EQ(l.entries().at("c").now, 0);
  EXPECT_EQ(l.entries().at("a").now, 128);
  c = Buffer();
  EXPECT_EQ(l.entries().at("a").now, 0);
}

TEST(Buffer, UnderPlanOnlyCounts) {
  Ledger l;
  Buffer b(Kind::plan, l, "x", int64_t{1} << 50);  // a pebibyte costs nothing
  EXPECT_EQ(l.peak_of("x"), int64_t{1} << 50);
  EXPECT_EQ(b.view(DType::f32).count, int64_t{1} << 48);
  EXPECT_FALSE(b.view(DType::f32).none());
}

TEST(Arena, GrowsFromBothEnds) {
  Ledger l;
  Arena a(Kind::cpu, l, "activations", 1024);
  EXPECT_EQ(l.peak_of("activations"), 1024);
  View s1 = a.save(3), s2 = a.save(20), t1 = a.temporary(5), t2 = a.temporary(16);
  for (const View& v : {s1, s2, t1, t2}) EXPECT_TRUE(aligned(v.data));
  char* base = static_cast<char*>(s1.data);
  EXPECT_EQ(static_cast<char*>(s2.data) - base, 64);
  EXPECT_EQ(static_cast<char*>(t1.data) - base, 1024 - 64);
  EXPECT_EQ(static_cast<char*>(t2.data) - base, 1024 - 128);
  EXPECT_EQ(s2.count, 20);
  EXPECT_EQ(a.low().bytes, 64 + 128);
  EXPECT_EQ(a.high().bytes, 128);
  EXPECT_EQ(a.peak(), 64 + 128 + 128);
  EXPECT_EQ(a.save(1, DType::u8).type, DType::u8);
}

TEST(Arena, PopsAndScopesGiveMemoryBack) {
  Ledger l;
  Arena a(Kind::cpu, l, "activations", 4096);
  a.save(16);
  Arena::Mark low = a.low();
  View first = a.save(16);
  a.save(16);
  a.pop_low(low);
  EXPECT_EQ(a.save(16).data, first.data) << "the freed place is used again";
  void* place = nullptr;
  {
    Arena::Scope outer(a);
    place = a.temporary(16).data;
    {
      Arena::Scope inner(a);
      a.temporary(16);
      a.temporary(16);
      EXPECT_EQ(a.high().bytes, 192);
    }
    EXPECT_EQ(a.high().bytes, 64);
  }
  EXPECT_EQ(a.high().bytes, 0);
  EXPECT_EQ(a.temporary(16).data, place);
  a.pop_high({0});
  EXPECT_EQ(a.high().bytes, 0);
  EXPECT_EQ(a.peak(), 128 + 192) << "the peak stays";
  EXPECT_THROW(a.pop_low({1 << 20}), base::Error) << "a mark beyond the end";
  EXPECT_THROW(a.pop_high({64}), base::Error);
}

TEST(Arena, RefusesWhatDoesNotFit) {
  Ledger l;
  Arena a(Kind::cpu, l, "activations", 256);
  a.save(32);
  EXPECT_NO_THROW(a.temporary(32));
  EXPECT_THROW(a.temporary(1), base::Error);
  Arena b(Kind::cpu, l, "activations", 256);
  b.temporary(48);
  EXPECT_THROW(b.save(17), base::Error) << "the two ends may not meet";
}

// Plays a random history of saves, temporaries, scopes and pops, and passes every view to `made`.
void play(Arena& a, base::Stream s, int depth, int64_t& steps,
          const std::function<void(const View&)>& made) {
  Arena::Scope scope(a);
  Arena::Mark mark = a.low();
  for (int i = 0; i < 6; ++i) {
    uint32_t what = s.bits(uint64_t(steps++)) % 4;
    int64_t count = 1 + int64_t(s.bits(uint64_t(steps++)) % 300);
    if (what == 0) made(a.save(count));
    if (what == 1) made(a.temporary(count, count % 2 ? DType::f32 : DType::u8));
    if (what == 2 && depth < 4) play(a, s, depth + 1, steps, made);
    if (what == 3) made(a.temporary(count, DType::f64));
  }
  a.pop_low(mark);
}

TEST(Arena, MeasuringFindsExactlyWhatRealMemoryNeeds) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    base::Stream s(seed, "arena");
    Arena paper;
    EXPECT_TRUE(paper.measuring());
    int64_t steps = 0, views = 0;
    play(paper, s, 0, steps, [&](const View& v) {
      ASSERT_FALSE(v.none());
      ++views;
    });
    Ledger l;
    Arena real(Kind::cpu, l, "activations", paper.peak());
    EXPECT_FALSE(real.measuring());
    // Every live range must keep its contents, which overlapping ranges would change.
    steps = 0;
    int64_t again = 0;
    play(real, s, 0, steps, [&](const View& v) {
      ++again;
      std::memset(v.data, int(again & 0xff), size_t(v.bytes()));
    });
    EXPECT_EQ(again, views);
    EXPECT_EQ(real.peak(), paper.peak());
    EXPECT_EQ(l.peak_of("activations"), paper.peak());
    if (paper.peak() == 0) continue;
    // 64 bytes less are too little.
    Arena small(Kind::cpu, l, "activations", paper.peak() - 64);
    steps = 0;
    EXPECT_THROW(play(small, s, 0, steps, [](const View&) {}), base::Error) << seed;
  }
}

TEST(Arena, LiveRangesNeverOverlap) {
  Ledger l;
  Arena a(Kind::cpu, l, "activations", 1 << 20);
  struct Range {
    float* data;
    int64_t count;
    float value;
  };
  std::vector<Range> low, high;
  base::Stream s(4, "overlap");
  for (int i = 0; i < 200; ++i) {
    int64_t count = 1 + int64_t(s.bits(uint64_t(i)) % 400);
    View v = i % 3 ? a.save(count) : a.temporary(count);
    for (int64_t k = 0; k < count; ++k) v.f32()[k] = float(i);
    (i % 3 ? low : high).push_back({v.f32(), count, float(i)});
  }
  for (const auto* ranges : {&low, &high})
    for (const Range& r : *ranges)
      for (int64_t k = 0; k < r.count; ++k) ASSERT_EQ(r.data[k], r.value);
}

TEST(Queue, ScratchIsAlignedAndOnlyGrows) {
  device::Queue q(Kind::cpu, 2);
  void* a = q.scratch(10);
  EXPECT_TRUE(aligned(a));
  size_t had = q.scratch_bytes();
  EXPECT_EQ(q.scratch(had), a) << "the present scratch is used";
  EXPECT_EQ(q.scratch_bytes(), had);
  std::memset(q.scratch(3 * had + 1), 1, 3 * had + 1);
  EXPECT_GE(q.scratch_bytes(), 3 * had + 1);
  size_t grown = q.scratch_bytes();
  q.scratch(1);
  EXPECT_EQ(q.scratch_bytes(), grown);
  EXPECT_THROW(device::Queue wrong(Kind::cuda), base::Error);
  EXPECT_THROW(device::Queue wrong(Kind::cpu, 0), base::Error);
}

TEST(Queue, AccountsPerOp) {
  device::Queue q(Kind::plan);
  q.account(3, 100, 8, 0.5);
  q.account(3, 1, 2, 0.25);
  q.account(5, 7, 7, 0);
  EXPECT_EQ(q.costs()[3].calls, 2);
  EXPECT_EQ(q.costs()[3].flops, 101);
  EXPECT_EQ(q.costs()[3].bytes, 10);
  EXPECT_EQ(q.costs()[3].seconds, 0.75);
  EXPECT_EQ(q.costs()[5].calls, 1);
  q.reset_costs();
  EXPECT_EQ(q.costs()[3].calls, 0);
}

}  // namespace
