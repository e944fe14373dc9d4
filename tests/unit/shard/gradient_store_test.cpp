// SPDX-License-Identifier: Apache-2.0
// Tests when gradients are exchanged: which exchanges begin when a block closes, what they join,
// and when the first wait comes. The communicators of this test end no exchange before its wait.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "logging_comm.hpp"
#include "shard/stores.hpp"

namespace {

using shard::Placement;

// Three blocks of one tensor each, with 32, 64 and 96 elements, on one rank of a mesh, or fewer
// blocks. The last of three may have a second unit.
struct Rank {
  int blocks;
  std::vector<std::string> log;
  std::vector<std::string>* ends = nullptr;  // receives what happens when the store is destroyed
  comm::Mesh mesh;
  device::Queue queue{device::Kind::cpu};
  device::Ledger ledger;
  shard::Layout layout;
  std::unique_ptr<shard::GradientStore> store;
  shard::GradientStore& gradients;

  static shard::Layout make_layout(Placement parameters, Placement optimizer, int fsdp,
                                   int64_t second_unit, int blocks) {
    std::vector<shard::Parameter> all;
    for (int b = 0; b < blocks; ++b)
      all.push_back(
          {.path = "p" + std::to_string(b), .shape = {32 * (b + 1)}, .init = {}, .block = b});
    if (second_unit)
      all.push_back(
          {.path = "q", .shape = {second_unit}, .init = {}, .block = 2, .element_state_bytes = 4});
    shard::ShardingOptions options;
    options.parameters = parameters;
    options.optimizer = optimizer;
    const std::vector<std::string> names = {"a", "b", "c"};
    return shard::Layout(all, {names.begin(), names.begin() + blocks}, options, fsdp, fsdp);
  }
  comm::Mesh make_ranks(comm::MeshShape shape) {
    comm::Mesh m;
    m.shape = shape;
    m.fsdp = std::make_unique<LoggingComm>("fsdp", shape.fsdp, log);
    m.replica = std::make_unique<LoggingComm>("replica", shape.replica, log);
    return m;
  }
  Rank(comm::MeshShape shape, Placement parameters, Placement optimizer, bool tree,
       int64_t accumulation, int64_t bucket_elements, int64_t second_unit = 0, int of_blocks = 3)
      : blocks(of_blocks),
        mesh(make_ranks(shape)),
        layout(make_layout(parameters, optimizer, shape.fsdp, second_unit, blocks)),
        store(std::make_unique<shard::GradientStore>(
            shard::Fabric{layout, mesh, queue, ledger, tree}, accumulation, bucket_elements * 4)),
        gradients(*store) {}
  ~Rank() {
    log.clear();
    store.reset();
    if (ends) *ends = log;
  }

  // Runs the backward pass of a micro-batch and returns what happened in it.
  std::vector<std::string> backward(int64_t m, bool completes) {
    log.clear();
    gradients.begin_micro_batch(m, completes);
    for (int block = blocks - 1; block >= 0; --block) {
      gradients.open(block);
      log.push_back("block " + std::to_string(block));
      gradients.close(block);
    }
    return log;
  }
  std::vector<std::string> finish() {
    log.clear();
    gradients.finish_step();
    return log;
  }
};

using Log = std::vector<std::string>;
constexpr Placement kWhole = Placement::replicated, kPart = Placement::sharded;

TEST(Exchanges, BeginWhenABlockClosesInTheLastMicroBatch) {
  Rank rank({1, 2}, kWhole, kWhole, false, 2, 0);
  for (int step = 0; step < 2; ++step) {
    rank.gradients.begin_step();
    EXPECT_EQ(rank.backward(0, false), (Log{"block 2", "block 1", "block 0"}));
    EXPECT_EQ(rank.backward(1, true),
              (Log{"block 2", "fsdp 96", "block 1", "fsdp 64", "block 0", "fsdp 32"}));
    EXPECT_EQ(rank.finish(), (Log{"wait fsdp 96", "wait fsdp 64", "wait fsdp 32"}));
  }
}

TEST(Exchanges, BeginAfterPassesThatCannotHoldThem) {
  Rank rank({1, 2}, kWhole, kWhole, false, 1, 0);
  rank.gradients.begin_step();
  EXPECT_EQ(rank.backward(0, false), (Log{"block 2", "block 1", "block 0"}));
  EXPECT_EQ(rank.finish(),
            (Log{"fsdp 96", "fsdp 64", "fsdp 32", "wait fsdp 96", "wait fsdp 64", "wait fsdp 32"}));
}

TEST(Exchanges, OfSmallUnitsAreJoined) {
  auto joined = [](int64_t bucket_elements) {
    Rank rank({1, 2}, kWhole, kWhole, false, 1, bucket_elements);
    rank.gradients.begin_step();
    return rank.backward(0, true);
  };
  EXPECT_EQ(joined(95), (Log{"block 2", "fsdp 96", "block 1", "fsdp 64", "block 0", "fsdp 32"}));
  EXPECT_EQ(joined(159), (Log{"block 2", "fsdp 96", "block 1", "block 0", "fsdp 96"}));
  EXPECT_EQ(joined(160), (Log{"block 2", "block 1", "fsdp 160", "block 0", "fsdp 32"}));
  EXPECT_EQ(joined(192), (Log{"block 2", "block 1", "block 0", "fsdp 192"}));
}

TEST(Exchanges, OfABlockAreJoinedWhateverTheirSize) {
  auto joined = [](int64_t bucket_elements) {
    Rank rank({1, 2}, kWhole, kWhole, false, 1, bucket_elements, 128);
    rank.gradients.begin_step();
    return rank.backward(0, true);
  };
  EXPECT_EQ(joined(1), (Log{"block 2", "fsdp 224", "block 1", "fsdp 64", "block 0", "fsdp 32"}));
  EXPECT_EQ(joined(0),
            (Log{"block 2", "fsdp 96", "fsdp 128", "block 1", "fsdp 64", "block 0", "fsdp 32"}));
}

TEST(Exchanges, OfAShardedOptimizerBeginLikewise) {
  Rank rank({1, 2}, kWhole, kPart, false, 2, 1000);
  rank.gradients.begin_step();
  EXPECT_EQ(rank.backward(0, false), (Log{"block 2", "block 1", "block 0"}));
  EXPECT_EQ(rank.backward(1, true), (Log{"block 2", "fsdp scatter 96", "block 1", "fsdp scatter 64",
                                         "block 0", "fsdp scatter 32"}));
}

// The sum over replicas follows that over the group while the next blocks compute.
TEST(Exchanges, GoOnOverReplicas) {
  Rank both({2, 2}, kWhole, kWhole, false, 1, 0);
  both.gradients.begin_step();
  EXPECT_EQ(both.backward(0, true),
            (Log{"block 2", "fsdp 96", "block 1", "fsdp 64", "wait fsdp 96", "replica 96",
                 "block 0", "fsdp 32", "wait fsdp 64", "replica 64"}));
  EXPECT_EQ(both.finish(), (Log{"wait fsdp 32", "replica 32", "wait replica 96", "wait replica 64",
                                "wait replica 32"}));
  Rank replicas({2, 1}, kWhole, kWhole, false, 1, 0);
  replicas.gradients.begin_step();
  EXPECT_EQ(replicas.backward(0, true),
            (Log{"block 2", "replica 96", "block 1", "replica 64", "block 0", "replica 32"}));
}

// Along the tree each micro-batch is exchanged. A wait comes when its buffer is needed again.
TEST(Exchanges, AlongTheTreeBeginInEachMicroBatch) {
  Rank rank({1, 2}, kWhole, kWhole, true, 2, 1000);
  rank.gradients.begin_step();
  EXPECT_EQ(rank.backward(0, false), (Log{"block 2", "fsdp 96", "block 1", "fsdp 64",
                                          "wait fsdp 96", "block 0", "fsdp 32"}));
  EXPECT_EQ(rank.backward(1, true),
            (Log{"wait fsdp 64", "block 2", "fsdp 96", "wait fsdp 32", "block 1", "fsdp 64",
                 "wait fsdp 96", "block 0", "fsdp 32"}));
  EXPECT_EQ(rank.finish(), (Log{"wait fsdp 64", "wait fsdp 32"}));
}

// A unit's sum of one micro-batch is added before the next one is exchanged, although its buffer is
// free: the tree hands out the next slot then.
TEST(Exchanges, OfAUnitFollowEachOther) {
  Rank rank({1, 2}, kWhole, kWhole, true, 4, 0, 0, 1);
  rank.gradients.begin_step();
  EXPECT_EQ(rank.backward(0, false), (Log{"block 0", "fsdp 32"}));
  EXPECT_EQ(rank.backward(1, false), (Log{"block 0", "wait fsdp 32", "fsdp 32"}));
  for (int64_t micro : {2, 3})  // the buffer is needed again
    EXPECT_EQ(rank.backward(micro, micro == 3), (Log{"wait fsdp 32", "block 0", "fsdp 32"}));
  EXPECT_EQ(rank.finish(), Log{"wait fsdp 32"});
}

// Sharded parameters exchange each micro-batch. From the second micro-batch on, the sums of all
// units use one buffer, which is added to the first sums before the next unit uses it.
TEST(Exchanges, OfShardedParametersLandOneAfterTheOther) {
  Rank rank({1, 2}, kPart, kPart, false, 3, 0);
  rank.gradients.begin_step();
  EXPECT_EQ(rank.backward(0, false),
            (Log{"block 2", "fsdp scatter 96", "block 1", "fsdp scatter 64", "wait fsdp scatter 96",
                 "block 0", "fsdp scatter 32"}));
  EXPECT_EQ(rank.backward(1, false),
            (Log{"wait fsdp scatter 64", "block 2", "fsdp scatter 96", "wait fsdp scatter 32",
                 "block 1", "wait fsdp scatter 96", "fsdp scatter 64", "block 0",
                 "wait fsdp scatter 64", "fsdp scatter 32"}));
  EXPECT_EQ(rank.backward(2, true), (Log{"block 2", "wait fsdp scatter 32", "fsdp scatter 96",
                                         "block 1", "wait fsdp scatter 96", "fsdp scatter 64",
                                         "block 0", "wait fsdp scatter 64", "fsdp scatter 32"}));
  EXPECT_EQ(rank.finish(), Log{"wait fsdp scatter 32"});
}

// Exchanges use the memory of the store, which an error may destroy while they are in flight.
TEST(Exchanges, EndBeforeTheirMemory) {
  auto rank = std::make_unique<Rank>(comm::MeshShape{1, 2}, kWhole, kWhole, false, 1, 0);
  Log log;
  rank->ends = &log;
  rank->gradients.begin_step();
  rank->backward(0, true);
  rank.reset();
  EXPECT_EQ(log, (Log{"wait fsdp 96", "wait fsdp 64", "wait fsdp 32"}));
}

}  // namespace
