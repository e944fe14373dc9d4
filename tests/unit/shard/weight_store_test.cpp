// SPDX-License-Identifier: Apache-2.0
// Tests the exchanges of weights that are gathered ahead.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "logging_comm.hpp"
#include "shard/stores.hpp"

namespace {
namespace weight_store_test {

// The exchange would otherwise write into freed memory.
TEST(WeightStore, WaitsAtItsEndForABlockThatNobodyAcquired) {
  std::vector<std::string> log;
  comm::Mesh mesh;
  mesh.shape = {1, 2};
  mesh.fsdp = std::make_unique<LoggingComm>("fsdp", 2, log);
  mesh.replica = std::make_unique<LoggingComm>("replica", 1, log);
  shard::ShardingOptions sharded;
  sharded.parameters = sharded.optimizer = shard::Placement::sharded;
  const shard::Layout layout({{.path = "a", .shape = {64}, .init = {}, .block = 0},
                              {.path = "b", .shape = {128}, .init = {}, .block = 1}},
                             {"first", "second"}, sharded, 2, 2);
  device::Queue queue(device::Kind::cpu);
  device::Ledger ledger;
  auto store =
      std::make_unique<shard::WeightStore>(shard::Fabric{layout, mesh, queue, ledger, false}, 1);
  log.clear();
  store->acquire(0, 1);
  EXPECT_EQ(log,
            (std::vector<std::string>{"fsdp gather 32", "wait fsdp gather 32", "fsdp gather 64"}));
  log.clear();
  store.reset();
  EXPECT_EQ(log, std::vector<std::string>{"wait fsdp gather 64"});
}

}  // namespace weight_store_test
}  // namespace
