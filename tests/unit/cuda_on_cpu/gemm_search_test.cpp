// SPDX-License-Identifier: Apache-2.0
// Tests the search for algorithms of products, with the emulated library, whose fastest algorithm a
// variable selects.
#include "kernels/gemm_search.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "device/memory.hpp"
#include "kernels/gemm.hpp"

namespace {

using namespace kernels;
using device::Kind;

constexpr int64_t kRows = 24, kColumns = 16, kInner = 40;

class GemmSearches : public testing::Test {
 protected:
  GemmSearches() : queue_(Kind::cuda), paper_(Kind::plan, 1, false, Kind::cuda) {
    paper_.set_prepares(true);
    for (auto [buffer, count] :
         {std::pair{&a_, kRows * kInner}, {&b_, kInner * kColumns}, {&c_, kRows * kColumns}}) {
      *buffer = device::Buffer(Kind::cuda, ledger_, "test", count * 4);
      device::write_on_host(buffer->view(DType::f32), queue_, [](View v) {
        for (int64_t i = 0; i < v.count; ++i) v.f32()[i] = float(i % 23) / 7 - float(i % 5);
      });
    }
    plan(product());
  }
  ~GemmSearches() override {
    use_gemm_choices("");
    unsetenv("CUBLASLT_ON_CPU_FASTEST");
    unsetenv("CUBLASLT_ON_CPU_SUMS");
  }

  Gemm product() {
    return {.c = c_.view(DType::f32),
            .a = a_.view(DType::f32),
            .b = b_.view(DType::f32),
            .m = kRows,
            .n = kColumns,
            .k = kInner};
  }
  // Plans the product; planned addresses differ from the later ones.
  void plan(Gemm g) {
    device::Arena arena;
    g.c = arena.save(g.c.count);
    g.a = arena.temporary(g.a.count);
    g.b = arena.save(g.b.count);
    run(g, paper_);
  }
  std::vector<float> result() {
    run(product(), queue_);
    std::vector<float> out(size_t(kRows * kColumns));
    device::download(out.data(), c_.view(DType::f32).slice(0, kRows * kColumns), queue_);
    return out;
  }
  // Returns the gradient of a kernel, followed by that of a bias.
  std::vector<float> with_sums(Write write) {
    Gemm g = product();
    g.write = write;
    device::Buffer sums(Kind::cuda, ledger_, "test", kColumns * 4);
    device::write_on_host(sums.view(DType::f32), queue_,
                          [](View v) { std::fill_n(v.f32(), v.count, 0.25f); });
    device::write_on_host(c_.view(DType::f32), queue_,
                          [](View v) { std::fill_n(v.f32(), v.count, 0.5f); });
    auto run_on = [&](Gemm at, View out, device::Queue& queue) {
      run_with_sums(at, {.out = out, .x = at.b, .m = kInner, .n = kColumns, .write = write}, queue);
    };
    device::Arena arena;
    Gemm on_paper = g;
    on_paper.c = arena.save(g.c.count);
    on_paper.a = arena.save(g.a.count);
    on_paper.b = arena.save(g.b.count);
    run_on(on_paper, arena.save(kColumns), paper_);
    run_on(g, sums.view(DType::f32), queue_);
    std::vector<float> out(size_t(kRows * kColumns + kColumns));
    device::download(out.data(), c_.view(DType::f32).slice(0, kRows * kColumns), queue_);
    device::download(out.data() + kRows * kColumns, sums.view(DType::f32), queue_);
    return out;
  }
  int64_t column_sums() const { return queue_.costs()[size_t(Op::column_sum)].calls; }
  static void fastest(const char* number) { setenv("CUBLASLT_ON_CPU_FASTEST", number, 1); }

  device::Ledger ledger_;
  device::Queue queue_, paper_;
  device::Buffer a_, b_, c_;
  int64_t calls_ = 0;
};

TEST_F(GemmSearches, TakesTheFastest) {
  const std::vector<float> first = result();
  fastest("2");
  GemmSearch found = search_gemms("", queue_);
  EXPECT_EQ(found.shapes, 1);
  EXPECT_EQ(found.timed, 1);
  EXPECT_EQ(found.changed, 1);
  EXPECT_NEAR(found.chosen_s, found.first_s / 2, 0.01 * found.first_s);
  EXPECT_EQ(result(), first) << "a choice changes nothing before use_gemm_choices";
  use_gemm_choices(found.choices);
  const std::vector<float> second = result();
  EXPECT_NE(second, first) << "the emulated algorithms round differently";
  for (size_t i = 0; i < first.size(); ++i) EXPECT_NEAR(second[i], first[i], 1e-4) << i;
}

TEST_F(GemmSearches, KeepsWhatWasChosenBefore) {
  fastest("2");
  const GemmSearch before = search_gemms("", queue_);
  use_gemm_choices(before.choices);
  const std::vector<float> second = result();
  fastest("0");
  const GemmSearch again = search_gemms(before.choices, queue_);
  EXPECT_EQ(again.timed, 0);
  EXPECT_EQ(again.choices, before.choices);
  use_gemm_choices(again.choices);
  EXPECT_EQ(result(), second);
  Gemm other = product();
  other.m = kRows / 2;
  other.a.count /= 2;
  other.c.count /= 2;
  plan(other);
  const GemmSearch more = search_gemms(before.choices, queue_);
  EXPECT_EQ(more.shapes, 2);
  EXPECT_EQ(more.timed, 1) << "only the new shape is timed";
  EXPECT_EQ(more.changed, 0);
  EXPECT_NE(more.choices.find(before.choices), std::string::npos);
  // Another job of the run had other shapes. Its choices stay for the next job with these shapes.
  const std::string others = "a shape of another job = 00\n";
  EXPECT_NE(search_gemms(others + before.choices, queue_).choices.find(others), std::string::npos);
}

TEST_F(GemmSearches, StaysWithTheFirstWhereItIsTheFastest) {
  const std::vector<float> first = result();
  fastest("0");
  use_gemm_choices(search_gemms("", queue_).choices);
  EXPECT_EQ(result(), first);
}

// The sums of a product's b move into its kernel only if that was timed and is faster.
TEST_F(GemmSearches, SumsGoIntoTheProductWhereThatPays) {
  for (Write write : {Write::overwrite, Write::accumulate}) {
    const std::vector<float> apart = with_sums(write);
    EXPECT_EQ(std::exchange(calls_, column_sums()) + 1, column_sums()) << "nothing was timed";
    for (const char* kernels : {"fast", "as fast", "none"}) {
      SCOPED_TRACE(kernels);
      setenv("CUBLASLT_ON_CPU_SUMS", kernels, 1);
      const GemmSearch found = search_gemms("", queue_);
      EXPECT_EQ(found.choices.find("apart") != found.choices.npos,
                kernels == std::string("as fast"))
          << found.choices;
      EXPECT_EQ(found.sums, kernels == std::string("none") ? 0 : write == Write::overwrite ? 1 : 2);
      EXPECT_EQ(found.together, kernels == std::string("fast") ? found.sums : 0);
      EXPECT_EQ(found.changed, 0) << "sums do not count as changed algorithms";
      use_gemm_choices(found.choices);
      const std::vector<float> now = with_sums(write);
      EXPECT_EQ(std::exchange(calls_, column_sums()) + (kernels != std::string("fast")),
                column_sums());
      for (size_t i = 0; i < now.size(); ++i) EXPECT_NEAR(now[i], apart[i], 1e-4) << i;
      EXPECT_EQ(search_gemms(found.choices, queue_).timed, 0)
          << "earlier choices are not timed again";
      use_gemm_choices("");
    }
    unsetenv("CUBLASLT_ON_CPU_SUMS");
  }
}

TEST_F(GemmSearches, RefusesWhatIsNotForThisGpu) {
  std::string choices = search_gemms("", queue_).choices;
  const size_t end = choices.rfind("feed\n") + 5;  // end of an algorithm
  for (size_t at : {end - 2, end - 9}) {
    std::string damaged = choices;
    damaged[at] = damaged[at] == 'z' ? 'y' : at + 2 == end ? '0' : 'z';
    try {
      use_gemm_choices(damaged);
      ADD_FAILURE() << "this damaged text was accepted: " << damaged;
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::Exit::mesh);
      EXPECT_NE(std::string(e.what()).find("gemm_search.txt"), std::string::npos) << e.what();
    }
  }
  EXPECT_NE(gemm_platform().find("CUDA on the CPU, cuBLASLt 130100"), std::string::npos);
}

}  // namespace
