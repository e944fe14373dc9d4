// SPDX-License-Identifier: Apache-2.0
// Tests that settings of a queue hold within their scope: inner scopes and exceptions restore them.
#include "device/queue.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

namespace {

using device::Kind;
using device::Queue;

TEST(Queue, ScopesOfEqualRowsMayBeNested) {
  Queue queue(Kind::cpu);
  {
    const Queue::RowsAlike outer(queue);
    { const Queue::RowsAlike inner(queue); }
    EXPECT_TRUE(queue.rows_alike());
  }
  EXPECT_FALSE(queue.rows_alike());
}

TEST(Queue, AnExceptionRestoresTheRoundingOfProducts) {
  Queue queue(Kind::plan, 1, false, Kind::cuda);
  queue.set_tf32(true);
  EXPECT_THROW(
      {
        const Queue::Tf32 exact(queue, false);
        EXPECT_FALSE(queue.tf32());
        throw std::runtime_error("a pass failed");
      },
      std::runtime_error);
  EXPECT_TRUE(queue.tf32());
}

}  // namespace
