// SPDX-License-Identifier: Apache-2.0
// Tests what happens if a library has no kernel for a call, with emulated libraries that refuse it.
// Another way gives the results, each such call is counted, and the log has a line for each shape.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "emulated_gpu.hpp"
#include "kernels/attention.hpp"
#include "kernels/cast.hpp"
#include "kernels/convolution.hpp"
#include "kernels/gemm.hpp"
#include "kernels/gemm_search.hpp"
#include "kernels/paths.hpp"

namespace {

using namespace kernels;
using device::Kind;

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

// A product that one kernel of the library does, with its epilogue.
class FallbacksOfProducts : public Fallbacks {
 protected:
  static constexpr int64_t kRows = 24, kColumns = 16, kInner = 40, kCount = kRows * kColumns;
  // Returns all results.
  std::vector<float> result(const std::string& epilogue, DType type) {
    const device::Buffer a = numbers(kRows * kInner, type), c = numbers(kCount, type),
                         y = numbers(kCount, type);
    Gemm g{.c = c.view(type).slice(0, kCount),
           .a = a.view(type).slice(0, kRows * kInner),
           .b = a.view(type).slice(0, kInner * kColumns),
           .m = kRows,
           .n = kColumns,
           .k = kInner};
    if (epilogue == "bias") g.bias = a.view(type).slice(0, kColumns);
    if (epilogue == "gelu") g.gelu = y.view(type).slice(0, kCount);
    if (epilogue == "dgelu") g.gelu_of = y.view(type).slice(0, kCount);
    run(g, queue_);
    std::vector<float> out = read(g.c);
    if (epilogue == "gelu")
      for (float x : read(g.gelu)) out.push_back(x);
    return out;
  }
};

TEST_F(FallbacksOfProducts, Epilogues) {
  int64_t refused = 0;
  for (const char* epilogue : {"bias", "gelu", "dgelu"})
    for (DType type : {DType::bf16, DType::f32}) {
      queue_.set_tf32(type == DType::f32);  // else the library's GELU is not exact enough for f32
      const std::vector<float> fused = result(epilogue, type);
      EXPECT_EQ(count_of(Path::fallback), refused);
      const Set set("CUBLASLT_ON_CPU_REFUSE", epilogue);
      use_gemm_choices("");
      const int64_t before = warnings();
      const std::vector<float> first = result(epilogue, type);
      EXPECT_EQ(first, result(epilogue, type));
      expect_near(first, fused, type == DType::f32 ? 1e-5f : 0.01f);
      EXPECT_EQ(count_of(Path::fallback), refused += 2) << epilogue;
      EXPECT_EQ(warnings(), before + 1) << "a line for each shape";
      use_gemm_choices("");
    }
}

TEST_F(FallbacksOfProducts, AllAtOnce) {
  const Set set("CUBLASLT_ON_CPU_REFUSE", "split,bias,gelu,dgelu");
  use_gemm_choices("");
  for (const char* epilogue : {"bias", "gelu", "dgelu"}) result(epilogue, DType::bf16);
  EXPECT_EQ(count_of(Path::fallback), 3);
  use_gemm_choices("");
}

// Algorithms may need all of the workspace, and get it.
TEST_F(FallbacksOfProducts, TheWorkspaceIsThere) {
  const std::vector<float> without = result("gelu", DType::bf16);
  for (size_t bytes : {kGemmWorkspace, kGemmWorkspace + 1}) {
    const Set set("CUBLASLT_ON_CPU_WORKSPACE", std::to_string(bytes).c_str());
    use_gemm_choices("");
    if (bytes == kGemmWorkspace)
      EXPECT_EQ(result("gelu", DType::bf16), without);
    else
      EXPECT_ANY_THROW(result("gelu", DType::bf16)) << "not even a plain product has a kernel";
  }
  use_gemm_choices("");
}

TEST_F(Fallbacks, ConvolutionsWithoutF32Results) {
  const ConvolutionShape shape{.window = {.batch = 2,
                                          .height = 5,
                                          .width = 5,
                                          .kernel_height = 3,
                                          .kernel_width = 3,
                                          .stride = 1,
                                          .padding = 1},
                               .in = 8,
                               .out = 8};
  const int64_t pixels = 2 * 25 * 8;
  const device::Buffer x = numbers(pixels, DType::bf16), wide = numbers(pixels, DType::f32),
                       w = numbers(8 * 8 * 9, DType::f32);
  const View narrow = x.view(DType::bf16).slice(0, pixels),
             same = wide.view(DType::f32).slice(0, pixels),
             out = w.view(DType::f32).slice(0, 8 * 8 * 9);
  run(Cast{.y = same, .x = narrow}, queue_);
  auto gradient = [&](const View& image) {
    run(ConvolutionBackwardWeights{.dw = out, .x = image, .dy = image, .shape = shape}, queue_);
    return read(out);
  };
  const std::vector<float> exact = gradient(same);
  EXPECT_EQ(count_of(Path::fallback), 0);
  const Set set("CUDNN_ON_CPU_REFUSE", "attention,floats");
  expect_near(gradient(narrow), exact, 0.01f);
  EXPECT_EQ(count_of(Path::fallback), 1);
  EXPECT_EQ(warnings(), 1);
}

}  // namespace
