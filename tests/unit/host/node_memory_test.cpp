// SPDX-License-Identifier: Apache-2.0
// Tests what the program reads about the node's memory.
#include "host/node_memory.hpp"

#include <gtest/gtest.h>

namespace host {
namespace {

TEST(NodeMemory, OfLinux) {
  const NodeMemory made = node_memory_of(
      "MemTotal:       24123456 kB\nMemFree:         1111 kB\nMemAvailable:   20123456 kB\n");
  EXPECT_EQ(made.total_kib, 24123456);
  EXPECT_EQ(made.available_kib, 20123456);
  EXPECT_EQ(node_memory_of("MemTotal: 7 kB\n").available_kib, 0) << "of an old kernel";
  EXPECT_EQ(node_memory_of("").total_kib, 0);
  const NodeMemory here = node_memory();
  EXPECT_GT(here.available_kib, 0);
  EXPECT_GT(here.total_kib, here.available_kib);
}

}  // namespace
}  // namespace host
