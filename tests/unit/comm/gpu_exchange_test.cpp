// SPDX-License-Identifier: Apache-2.0
// Tests the decision between NCCL and MPI for exchanges.
#include "comm/gpu_exchange.hpp"

#include <gtest/gtest.h>

namespace {

using comm::choose_exchange;
using comm::SumOrder;

TEST(GpuExchange, NcclWhereEveryRankHasAGpuOfItsOwn) {
  EXPECT_TRUE(choose_exchange({{"a", "GPU-0"}, {"a", "GPU-1"}, {"b", "GPU-2"}, {"b", "GPU-3"}},
                              SumOrder::library)
                  .nccl);
  EXPECT_TRUE(choose_exchange({{"a", "GPU-0"}, {"b", "GPU-1"}}, SumOrder::library).nccl);
}

TEST(GpuExchange, RanksThatShareAGpuGoThroughTheHost) {
  auto c = choose_exchange(
      {{"a", "GPU-0"}, {"b", "GPU-1"}, {"a", "GPU-2"}, {"b", "GPU-1"}, {"b", "GPU-1"}},
      SumOrder::library);
  EXPECT_FALSE(c.nccl);
  EXPECT_EQ(
      c.because,
      "ranks 1 and 3 and 1 more of b share one GPU (GPU-1), and NCCL allows only one rank per GPU");
}

TEST(GpuExchange, OneRankNeedsNothing) {
  EXPECT_FALSE(choose_exchange({{"a", "GPU-0"}}, SumOrder::library).nccl);
}

TEST(GpuExchange, AFixedOrderOfAdditionsGoesThroughTheHost) {
  auto c = choose_exchange({{"a", "GPU-0"}, {"a", "GPU-1"}}, SumOrder::tree);
  EXPECT_FALSE(c.nccl);
  EXPECT_NE(c.because.find("determinism.level"), std::string::npos);
}

}  // namespace
