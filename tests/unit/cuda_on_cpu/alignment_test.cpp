// SPDX-License-Identifier: Apache-2.0
// Tests that the emulated GPU and its libraries find addresses with too little alignment.
#include <string>
#include <vector>

#include "emulated_gpu.hpp"
#include "kernels/attention.hpp"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/matmul_cublaslt.hpp"
#include "kernels/paths.hpp"

namespace {

using namespace kernels;

template <int kShift>
__global__ void copies_packs(float* x) {
  if (threadIdx.x == 0) store_pack(x + 32, load_pack<4>(x + kShift));
}

class Alignment : public EmulatedGpu {
 protected:
  Alignment() : large_(device::Kind::cuda, ledger_, "test", 4096) {}
  float* at(size_t i) const { return static_cast<float*>(large_.data()) + i; }
  cublaslt::Call product(size_t shift) const {
    return {.m = 8,
            .n = 8,
            .k = 8,
            .lda = 8,
            .ldb = 8,
            .ldc = 8,
            .ldd = 8,
            .a = at(shift),
            .b = at(128),
            .c = at(256),
            .d = at(256)};
  }
  std::string error_of(const cublaslt::Call& asked, const cublaslt::Call& called) {
    const cublaslt::Matmul matmul = cublaslt::describe(asked);
    const auto algorithms = cublaslt::proposals(matmul, asked, 1);
    EXPECT_EQ(algorithms.size(), 1u);
    try {
      cublaslt::execute(called, matmul, algorithms.at(0), queue_.scratch(cublaslt::kWorkspace),
                        queue_);
    } catch (const std::exception& e) {
      return e.what();
    }
    return "";
  }
  device::Buffer large_;
};

TEST_F(Alignment, ProductsRunWhereTheyWerePlanned) {
  EXPECT_EQ(error_of(product(0), product(0)), "");
  EXPECT_EQ(error_of(product(2), product(2)), "");
  EXPECT_EQ(error_of(product(2), product(0)), "") << "more than was asked for";
  const std::string text = error_of(product(0), product(2));
  EXPECT_NE(text.find("CUBLAS_STATUS_INVALID_VALUE"), text.npos) << text;
}

TEST_F(Alignment, EpiloguesNeedSixteenBytes) {
  cublaslt::Call right = product(0);
  right.epilogue = CUBLASLT_EPILOGUE_BIAS;
  right.bias = at(512);
  cublaslt::Call wrong = right;
  wrong.bias = at(514);
  EXPECT_EQ(error_of(right, right), "");
  EXPECT_NE(error_of(right, wrong), "");
  EXPECT_TRUE(cublaslt::proposals(cublaslt::describe(wrong), wrong, 1).empty());
  right.epilogue = CUBLASLT_EPILOGUE_DGELU;
  right.ld_aux = 8;
  right.bias = nullptr;
  right.aux = at(512);
  wrong = right;
  wrong.aux = at(514);
  EXPECT_EQ(error_of(right, right), "");
  EXPECT_NE(error_of(right, wrong), "");
  EXPECT_TRUE(cublaslt::proposals(cublaslt::describe(wrong), wrong, 1).empty());
}

TEST_F(Alignment, AttentionIsRefusedBelowSixteenBytes) {
  const auto attend = [&](size_t shift) {
    auto rows = [&](size_t i) { return View{at(i), DType::bf16, 2 * 8}; };
    kernels::run(
        AttentionForward{
            .o = rows(512),
            .q = rows(shift),
            .k = rows(128),
            .v = rows(256),
            .shape = {.batch = 1, .heads = 1, .query_length = 2, .key_length = 2, .head_dim = 8}},
        queue_);
  };
  attend(0);
  EXPECT_EQ(path_counts(queue_)[size_t(Path::attention_cudnn)], 1);
  EXPECT_ANY_THROW(attend(1));
}

using AlignmentDeathTest = Alignment;
TEST_F(AlignmentDeathTest, KernelsMayNotReadPacksAnywhere) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EQ(run(copies_packs<4>, "forward")[32], 4);
  EXPECT_DEATH(run(copies_packs<2>, "forward"),
               "an address that its type does not allow|misaligned");
}

}  // namespace
