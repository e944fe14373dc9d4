// SPDX-License-Identifier: Apache-2.0
// Tests ops that run together (run_all): they have the bits of one op at a time, whatever other ops
// run, and the scratch of the plan.
#include "base/narrow.hpp"
#include "kernels/adafactor.hpp"
#include "kernels/adamw_update.hpp"
#include "kernels/add_noise.hpp"
#include "kernels/bf16_value.hpp"
#include "kernels/cast.hpp"
#include "kernels/cuda/launch_shapes.hpp"
#include "kernels/ema_update.hpp"
#include "kernels/lion_update.hpp"
#include "kernels/max_abs.hpp"
#include "kernels/momentum_update.hpp"
#include "kernels/square_sums.hpp"
#include "kernels/trust.hpp"
#include "kernels/unit_rows.hpp"
#include "rig.hpp"

namespace {

using namespace kernels;
using namespace rig;
using device::DType;

// Memory for some ops, between guard bands. Its numbers follow from the order of the requests, so
// two memories filled alike are equal.
class Memory {
 public:
  // `shift` is the distance in elements from 64-byte alignment.
  View normals(int64_t count, int64_t shift = 0) { return keep(numbers(count), shift); }
  View squares(int64_t count, int64_t shift = 0) {
    std::vector<float> x = numbers(count);
    for (float& v : x) v = v * v + 0.1f;
    return keep(x, shift);
  }
  View bf16(int64_t count, int64_t shift = 0) {
    const std::vector<float> x = numbers(count);
    auto* narrow =
        static_cast<uint16_t*>(keep(std::vector<float>(x.size() / 2 + 2), 0).data) + shift;
    for (size_t i = 0; i < x.size(); ++i) narrow[i] = loops::round_to_bf16(x[i]).bits;
    return {narrow, DType::bf16, count};
  }
  View doubles(int64_t count) {
    return {keep(std::vector<float>(size_t(2 * count), 1.0f), 0).data, DType::f64, count};
  }
  std::vector<float> values() const { return {all_.data(), all_.data() + used_}; }

  // Calls run(ops) on views in the queue's memory.
  template <class Args, class F>
  void on_queue(std::vector<Args> ops, TestQueue& queue, const F& run) {
    if (!on_cuda()) return run(ops);
    device::Ledger ledger;
    const device::Buffer there(kind(), ledger, "test", used_ * 4);
    device::upload(there.view(DType::f32), all_.data(), queue);
    for (Args& args : ops)
      for (View* v : views(args))
        if (!v->none())
          v->data = static_cast<char*>(there.data()) +
                    (static_cast<char*>(v->data) - reinterpret_cast<char*>(all_.data()));
    run(ops);
    device::download(all_.data(), there.view(DType::f32), queue);
  }

 private:
  static constexpr int64_t kMost = 16'000'000, kBand = 64;
  // Returns normal numbers from a pool, because drawing all of them again would take most of the
  // time.
  std::vector<float> numbers(int64_t count) const {
    static const std::vector<float> pool = rig::normals(300'007, "pool");
    const int64_t begin = used_ * 7919 % (int64_t(pool.size()) - count);
    return {pool.begin() + begin, pool.begin() + begin + count};
  }
  View keep(const std::vector<float>& values, int64_t shift) {
    const int64_t begin = base::round_up(used_ + kBand, 16) + shift;
    CHECK(begin + int64_t(values.size()) <= kMost);
    std::copy(values.begin(), values.end(), all_.data() + begin);
    used_ = begin + int64_t(values.size());
    return device::view(all_.data() + begin, int64_t(values.size()));
  }
  Tensor all_{kMost};
  int64_t used_ = 0;
};

// There are more tensors than a launch takes. Their sizes of none, one and several blocks
// alternate, and some are not aligned.
constexpr int kTensors = 180;
int64_t count_of(int i) {
  constexpr int64_t counts[] = {5, 4097, 64, 16385, 1, 33000, 4096, 0, 12, 8192, 5001, 700};
  return counts[i % 12] + (i % 5 == 0 ? 16384 : 0) - (i % 60 == 30);
}
int64_t shift_of(int i) { return i % 7 == 3 ? 1 : 0; }

// `make(i, memory)` returns op i, on its own memory.
template <class Args>
void expect_the_bits_of_each(const std::function<Args(int, Memory&)>& make) {
  Memory alone, together;
  std::vector<Args> one_by_one, ops;
  for (int i = 0; i < kTensors; ++i) {
    one_by_one.push_back(make(i, alone));
    ops.push_back(make(i, together));
  }
  const std::vector<float> untouched = together.values();
  TestQueue one, all(2);
  alone.on_queue(one_by_one, one, [&](const std::vector<Args>& there) {
    for (const Args& args : there) kernels::run(args, one);
  });
  together.on_queue(ops, all, [&](const std::vector<Args>& there) {
    kernels::run_all(std::span<const Args>(there), all);
  });
  EXPECT_FALSE(same_bits(untouched, together.values()));
  EXPECT_TRUE(same_bits(alone.values(), together.values()));
  for (const device::OpCost* cost :
       {&one.costs()[size_t(Args::op)], &all.costs()[size_t(Args::op)]})
    EXPECT_EQ(cost->calls, kTensors);
  EXPECT_EQ(one.costs()[size_t(Args::op)].bytes, all.costs()[size_t(Args::op)].bytes);

  Queue paper(Kind::plan, 1, false, Kind::cuda);
  kernels::run_all(std::span<const Args>(ops), paper);
  EXPECT_EQ(paper.costs()[size_t(Args::op)].bytes, all.costs()[size_t(Args::op)].bytes);
  if (on_cuda()) {
    EXPECT_EQ(paper.scratch_bytes(), all.scratch_bytes()) << "the scratch differs from the plan's";
  }
}

Update update_of(int i, Memory& m, int64_t count) {
  Update u{
      .weights = m.normals(count, shift_of(i)), .gradient = m.normals(count), .sums = m.doubles(2)};
  u.clip = i % 2 ? Clip{1, 1} : Clip{3, 1.5f};
  u.rate = 0.1f + float(i) * 0.01f;
  u.decay = 0.01f * float(i % 3);
  u.schedule = 0.5f;
  if (i % 8 == 2) u.inner.trust = m.squares(2);
  if (i % 8 == 5) u.inner = {.decay = 0.01f, .ratio = 0.75f};
  return u;
}
View state_of(int i, Memory& m, int64_t count) {
  return i % 3 == 1 ? m.bf16(count, i % 4 == 2) : m.normals(count, i % 8 == 5);
}

// Returns every layout in turn: with tiles, without, heads, whole tensors and parts of them.
Factored shape_of(int i) {
  const Factored shapes[] = {
      {1, 70, 3, 64, 1, true},    {1, 5, 1, 7, 1, false}, {2, 130, 1, 256, 1, false},
      {1, 65, 1, 384, 1, false},  {2, 6, 3, 5, 4, true},  {4, 33, 1, 35, 1, false},
      {1, 130, 1, 128, 1, false}, {3, 5, 5, 8, 1, true},  {1, 40, 1, 70, 3, false}};
  return shapes[i % 9];
}
struct Part {
  int64_t begin, count;
};
Part part_of(int i, const Factored& s) {
  const int64_t n = s.count();
  return i % 4 == 1    ? Part{n / 3 + 1, n / 2}
         : i % 4 == 2  ? Part{4, n - 8}
         : i % 20 == 3 ? Part{n / 2, 0}
                       : Part{0, n};
}
AdafactorScaling scaling_of(int i, Memory& m, int64_t count) {
  AdafactorScaling s{.beta2 = 0.625f, .eps = 1e-3f};
  if (i % 2) {
    s.v = m.squares(count, i % 9 == 4);
    return s;
  }
  s.shape = shape_of(i);
  s.begin = part_of(i, s.shape).begin;
  s.factor_over_x = m.squares(s.shape.over_x());
  s.factor_over_y = m.squares(s.shape.over_y());
  return s;
}
int64_t scaled_count(int i) { return i % 2 ? count_of(i) : part_of(i, shape_of(i)).count; }

TEST(ManyOps, SquareSums) {
  expect_the_bits_of_each<SquareSums>([](int i, Memory& m) {
    const View sum = m.doubles(1);
    return SquareSums{sum, m.normals(count_of(i), shift_of(i))};
  });
}

TEST(ManyOps, AdafactorSums) {
  expect_the_bits_of_each<AdafactorSums>([](int i, Memory& m) {
    const Factored s = shape_of(i);
    const Part part = part_of(i, s);
    return AdafactorSums{m.doubles(1),
                         m.doubles(s.over_x()),
                         m.doubles(s.over_y()),
                         m.normals(part.count, shift_of(i)),
                         part.begin,
                         s};
  });
}

TEST(ManyOps, AdafactorFactors) {
  expect_the_bits_of_each<AdafactorFactors>([](int i, Memory& m) {
    const Factored s = shape_of(i);
    const int64_t x = s.over_x(), y = s.over_y();
    const Clip clip = i % 2 ? Clip{1, 1} : Clip{3, 1.5f};
    return AdafactorFactors{m.squares(x),
                            m.squares(y),
                            m.normals(x),
                            m.normals(y),
                            m.doubles(x),
                            m.doubles(y),
                            s,
                            clip,
                            0.1f * float(i % 10),
                            1e-3f};
  });
}

TEST(ManyOps, AdafactorRms) {
  expect_the_bits_of_each<AdafactorRms>([](int i, Memory& m) {
    const int64_t n = scaled_count(i);
    const View sum = m.doubles(1), gradient = m.normals(n, shift_of(i));
    return AdafactorRms{sum, gradient, {3, 1.5f}, scaling_of(i, m, n)};
  });
}

TEST(ManyOps, AdafactorUpdate) {
  expect_the_bits_of_each<AdafactorUpdate>([](int i, Memory& m) {
    const int64_t n = scaled_count(i);
    AdafactorUpdate a{
        .update = update_of(i, m, n), .scaling = scaling_of(i, m, n), .keep = 0.75f, .add = 0.125f};
    if (i % 5) a.momentum = state_of(i, m, n);
    if (i % 4 == 3) a.rms = {m.doubles(1), n + 1, 0.01f * float(1 + i)};
    return a;
  });
}

TEST(ManyOps, AdamwUpdate) {
  expect_the_bits_of_each<AdamwUpdate>([](int i, Memory& m) {
    const int64_t n = count_of(i);
    const Update u = update_of(i, m, n);
    const View mu = state_of(i, m, n), nu = m.squares(n, i % 10 == 6);
    AdamwUpdate a{u,     mu,   nu, 0.75f, 0.25f, 0.875f, 0.125f, 0.4f, 0.001f * float(1 + i),
                  1e-3f, 1e-4f};
    if (i % 4 == 1) a.nu_max = m.squares(n, i % 16 == 5);
    if (i % 4 == 2) {
      a = {.update = u, .mu = {}, .nu = nu, .keep1 = 0.75f, .keep2 = 0.875f, .add2 = 0.125f};
      a.divides_first = true;
      a.eps = 0.001f * float(1 + i);
      if (i % 8 == 2) a.mu = m.squares(n, false);
      if (i % 16 > 8) a.centre = m.squares(n, false);
    }
    return a;
  });
}

TEST(ManyOps, LionUpdate) {
  expect_the_bits_of_each<LionUpdate>([](int i, Memory& m) {
    const Update u = update_of(i, m, count_of(i));
    return LionUpdate{u, state_of(i, m, count_of(i)), 0.75f, 0.25f, 0.875f, 0.01f * float(i)};
  });
}

TEST(ManyOps, TrustSumsAndRatios) {
  expect_the_bits_of_each<TrustSums>([](int i, Memory& m) {
    const int64_t n = count_of(i);
    return TrustSums{.sums = m.doubles(2),
                     .weights = m.normals(n, shift_of(i)),
                     .gradient = m.normals(n, i % 4 == 2),
                     .clip = i % 2 ? Clip{1, 1} : Clip{3, 1.5f},
                     .decay = 0.01f * float(i % 3)};
  });
  expect_the_bits_of_each<TrustRatio>([](int i, Memory& m) {
    return TrustRatio{.trust = m.normals(2),
                      .sums = m.doubles(2),
                      .rule = i % 2 ? Trust::larc : Trust::lars,
                      .coefficient = 0.01f * float(1 + i),
                      .eps = 1e-8f,
                      .decay = 0.01f,
                      .limit = i % 4 ? 0 : 0.5f};
  });
}

TEST(ManyOps, LargestValues) {
  expect_the_bits_of_each<MaxAbs>([](int i, Memory& m) {
    const View largest = m.doubles(1);
    return MaxAbs{largest, m.normals(count_of(i), shift_of(i))};
  });
}

TEST(ManyOps, RowsAndTheirSquares) {
  const int64_t widths[] = {1, 3, 17, 64, 700};
  // Each row takes a warp, so tensors of narrow rows are short. They still take several blocks.
  auto count = [&](int i) { return std::min(count_of(i), 100 * widths[i % 5]); };
  auto rows = [&](int i) { return count(i) / widths[i % 5] + 2; };
  expect_the_bits_of_each<RowSquares>([&](int i, Memory& m) {
    const View sums = m.doubles(rows(i));
    return RowSquares{sums, m.normals(count(i), shift_of(i)), i % 3, widths[i % 5]};
  });
  expect_the_bits_of_each<UnitRows>([&](int i, Memory& m) {
    const View x = m.normals(count(i), shift_of(i));
    return UnitRows{x, m.doubles(rows(i)), i % 3, widths[i % 5],
                    i % 4 == 3 ? m.squares(3) : View{}};
  });
}

TEST(ManyOps, Noise) {
  expect_the_bits_of_each<AddNoise>([](int i, Memory& m) {
    const int64_t n = count_of(i);
    const View y = m.normals(n, shift_of(i)), x = i % 3 ? y : m.normals(n, i % 4 == 2);
    return AddNoise{y, x, base::Stream(uint64_t(i), "noise"), 100 * i, 0.1f};
  });
}

TEST(ManyOps, MomentumAndPlainUpdate) {
  expect_the_bits_of_each<MomentumUpdate>([](int i, Memory& m) {
    const Update u = update_of(i, m, count_of(i));
    return MomentumUpdate{
        u, state_of(i, m, count_of(i)), 0.75f, 0.01f * float(i), i % 4 < 2, i % 5 ? 1 : 0.7f};
  });
  expect_the_bits_of_each<ApplyUpdate>(
      [](int i, Memory& m) { return ApplyUpdate{update_of(i, m, count_of(i))}; });
}

TEST(ManyOps, EmaUpdate) {
  expect_the_bits_of_each<EmaUpdate>([](int i, Memory& m) {
    const int64_t n = count_of(i);
    const View average = m.normals(n, shift_of(i)), values = m.normals(n, i % 4 == 2);
    return EmaUpdate{average, values, i % 3 ? m.squares(3) : View{},
                     i % 6 ? 0.01f * float(i % 100) : 0.0f};
  });
}

TEST(ManyOps, Cast) {
  expect_the_bits_of_each<Cast>([](int i, Memory& m) {
    const int64_t n = count_of(i);
    const View wide = m.normals(n, shift_of(i)), narrow = m.bf16(n, i % 8 == 4 ? 1 : 0);
    return i % 3 ? Cast{.y = narrow, .x = wide} : Cast{.y = wide, .x = narrow};
  });
}

// Consecutive ops share the scratch while it has room. Each op is in one such run, in order.
TEST(ManyOps, ScratchIsShared) {
  View sum{nullptr, DType::f64, 1}, x{nullptr, DType::f32, 0};
  const auto op = [&](size_t bytes) {
    x.count = int64_t(bytes) / 8 * kSquareCudaBlock;
    const SquareSums a{sum, x};
    EXPECT_EQ(cuda_scratch(a), bytes);
    return a;
  };
  const size_t all = kSharedScratch;
  const std::vector<SquareSums> ops{op(all / 2), op(all / 2), op(16),       op(2 * all), op(all),
                                    op(0),       op(24),      op(all - 16), op(16)};
  std::vector<std::pair<size_t, size_t>> runs;
  const SquareSums* next = ops.data();
  for_shared_scratch(std::span<const SquareSums>(ops),
                     [&](std::span<const SquareSums> some, size_t bytes) {
                       EXPECT_EQ(some.data(), next);
                       next += some.size();
                       runs.emplace_back(some.size(), bytes);
                     });
  EXPECT_EQ(next, ops.data() + ops.size());
  EXPECT_EQ(runs, (std::vector<std::pair<size_t, size_t>>{
                      {2, all}, {1, 16}, {1, 2 * all}, {2, all}, {1, 24}, {2, all}}));
  Queue gpu(Kind::plan, 1, false, Kind::cuda), cpu(Kind::plan);
  for (Queue* paper : {&gpu, &cpu}) kernels::run_all(std::span<const SquareSums>(ops), *paper);
  EXPECT_EQ(gpu.scratch_bytes(), 2 * all);
  EXPECT_EQ(cpu.scratch_bytes(), 0u);
}

}  // namespace
