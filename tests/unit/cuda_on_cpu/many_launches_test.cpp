// SPDX-License-Identifier: Apache-2.0
// Counts the kernels that start for ops that run together.
#include <gtest/gtest.h>

#include <vector>

#include "cuda_runtime.h"
#include "device/memory.hpp"
#include "kernels/adamw_update.hpp"
#include "kernels/cast.hpp"

namespace {

using namespace kernels;

class ManyLaunches : public testing::Test {
 protected:
  static constexpr int64_t kOps = 300, kElements = 64;
  ManyLaunches()
      : queue_(device::Kind::cuda),
        buffer_(device::Kind::cuda, ledger_, "test", 5 * kOps * kElements * 4) {}
  View part(int64_t which, int64_t op, DType type, int64_t count) const {
    return {static_cast<char*>(buffer_.data()) + (which * kOps + op) * kElements * 4, type, count};
  }
  template <class F>
  int64_t launches_of(const F& run) {
    const int64_t before = cuda_on_cpu::launches;
    run();
    queue_.synchronize();
    return cuda_on_cpu::launches - before;
  }
  device::Queue queue_;
  device::Ledger ledger_;
  device::Buffer buffer_;
};

TEST_F(ManyLaunches, HundredsOfUpdatesAreAFewLaunches) {
  OpList<AdamwUpdate> list;
  auto op = [&](int64_t i) {
    auto floats = [&](int64_t which) { return part(which, i, DType::f32, kElements); };
    return AdamwUpdate{.update = {floats(0), floats(1), part(2, i, DType::f64, 2)},
                       .mu = floats(3),
                       .nu = floats(4)};
  };
  EXPECT_EQ(launches_of([&] {
              for (int64_t i = 0; i < kOps; ++i) run(op(i), queue_);
            }),
            kOps);
  for (int turn = 0; turn < 2; ++turn) {
    for (int64_t i = 0; i < kOps; ++i) list.add(op(i));
    EXPECT_LE(launches_of([&] { list.run(queue_); }), 12);
    EXPECT_EQ(launches_of([&] { list.run(queue_); }), 0)
        << "the list must not keep ops that have run";
  }
}

TEST_F(ManyLaunches, HundredsOfCastsAreAFewLaunches) {
  OpList<Cast> list;
  for (int64_t i = 0; i < kOps; ++i)
    list.add({.y = part(0, i, DType::bf16, kElements), .x = part(1, i, DType::f32, kElements)});
  EXPECT_LE(launches_of([&] { list.run(queue_); }), 3);
}

}  // namespace
