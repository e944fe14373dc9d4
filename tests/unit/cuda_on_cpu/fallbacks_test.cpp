// SPDX-License-Identifier: Apache-2.0
// Tests what happens if a library has no kernel for what is asked, with emulated libraries that
// refuse it: another way gives the results, each call counts, and the log has a line for each
// shape.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "base/log.hpp"
#include "device/memory.hpp"
#include "kernels/attention.hpp"
#include "kernels/cast.hpp"
#include "kernels/gemm.hpp"
#include "kernels/gemm_search.hpp"
#include "kernels/paths.hpp"

namespace {

using namespace kernels;
using device::Kind;

// A variable of the environment while the object lives.
class Set {
 public:
  Set(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Set() { unsetenv(name_); }
  Set(const Set&) = delete;

 private:
  const char* name_;
};

class Fallbacks : public testing::Test {
 protected:
  Fallbacks() : queue_(Kind::cuda), warnings_(base::log::warnings_so_far()) {}

  device::Buffer numbers(int64_t count, DType type) {
    device::Buffer wide(Kind::cuda, ledger_, "test", count * 4),
        out(Kind::cuda, ledger_, "test", count * device::size_of(type));
    device::write_on_host(wide.view(DType::f32), queue_, [](View v) {
      for (int64_t i = 0; i < v.count; ++i) v.f32()[i] = float(i % 23) / 7 - float(i % 5) / 2;
    });
    if (type == DType::f32) return wide;
    run(Cast{.y = out.view(type).slice(0, count), .x = wide.view(DType::f32).slice(0, count)},
        queue_);
    return out;
  }
  std::vector<float> read(const View& x) {
    device::Buffer wide(Kind::cuda, ledger_, "test", x.count * 4);
    const View all = wide.view(DType::f32).slice(0, x.count);
    if (x.type == DType::f32)
      device::copy(all, x, queue_);
    else
      run(Cast{.y = all, .x = x}, queue_);
    std::vector<float> out(size_t(x.count));
    device::download(out.data(), all, queue_);
    return out;
  }
  std::vector<float> attend(const AttentionShape& s, DType type) {
    const int64_t count = s.batch * s.query_length * s.heads * s.head_dim;
    const device::Buffer q = numbers(count, type), o = numbers(count, type);
    const View from = q.view(type).slice(0, count), to = o.view(type).slice(0, count);
    run(AttentionForward{.o = to, .q = from, .k = from, .v = from, .shape = s}, queue_);
    return read(to);
  }
  int64_t count_of(Path path) const { return path_counts(queue_)[size_t(path)]; }
  int warnings() const { return base::log::warnings_so_far() - warnings_; }

  device::Ledger ledger_;
  device::Queue queue_;

 private:
  int warnings_;
};

void expect_near(const std::vector<float>& a, const std::vector<float>& b, float most) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], most * (1 + std::abs(b[i]))) << i;
}

constexpr AttentionShape kShape{
    .batch = 2, .heads = 3, .query_length = 5, .key_length = 5, .head_dim = 16};

TEST_F(Fallbacks, AttentionWithoutAPlan) {
  const std::vector<float> by_library = attend(kShape, DType::bf16);
  EXPECT_EQ(count_of(Path::attention_cudnn), 1);
  EXPECT_EQ(count_of(Path::fallback), 0);
  const Set set("CUDNN_ON_CPU_REFUSE", "attention");
  // Plans are kept, so another number of examples asks for a plan that does not exist yet.
  AttentionShape one = kShape;
  one.batch = 1;
  const std::vector<float> first = attend(one, DType::bf16);
  EXPECT_EQ(first, attend(one, DType::bf16));
  expect_near(first, {by_library.begin(), by_library.begin() + long(first.size())}, 0.02f);
  EXPECT_EQ(count_of(Path::attention_own), 2);
  EXPECT_EQ(count_of(Path::fallback), 2);
  EXPECT_EQ(warnings(), 1) << "a line for each shape";
}

TEST_F(Fallbacks, AttentionWithoutProductsOfABatch) {
  const std::vector<float> by_library = attend(kShape, DType::f32);
  EXPECT_EQ(count_of(Path::attention_products), 1);
  const Set set("CUBLASLT_ON_CPU_REFUSE", "batch");
  use_gemm_choices("");  // forgets the kernels that were found
  const std::vector<float> first = attend(kShape, DType::f32);
  EXPECT_EQ(first, attend(kShape, DType::f32));
  expect_near(first, by_library, 1e-5f);
  EXPECT_EQ(count_of(Path::attention_own), 2);
  EXPECT_EQ(count_of(Path::fallback), 2);
  EXPECT_EQ(warnings(), 1);
}

TEST_F(Fallbacks, EpiloguesOfProducts) {
  constexpr int64_t kRows = 24, kColumns = 16, kInner = 40;
  const device::Buffer a = numbers(kRows * kInner, DType::bf16),
                       c = numbers(kRows * kColumns, DType::bf16),
                       y = numbers(kRows * kColumns, DType::bf16);
  auto result = [&] {
    run(Gemm{.c = c.view(DType::bf16).slice(0, kRows * kColumns),
             .a = a.view(DType::bf16),
             .b = a.view(DType::bf16).slice(0, kInner * kColumns),
             .m = kRows,
             .n = kColumns,
             .k = kInner,
             .gelu = y.view(DType::bf16).slice(0, kRows * kColumns)},
        queue_);
    return read(y.view(DType::bf16).slice(0, kRows * kColumns));
  };
  const std::vector<float> fused = result();
  EXPECT_EQ(count_of(Path::fallback), 0);
  const Set set("CUBLASLT_ON_CPU_REFUSE", "gelu");
  use_gemm_choices("");
  const std::vector<float> first = result();
  EXPECT_EQ(first, result());
  expect_near(first, fused, 0.01f);
  EXPECT_EQ(count_of(Path::fallback), 2);
  EXPECT_EQ(warnings(), 1);
}

}  // namespace
