// SPDX-License-Identifier: Apache-2.0
// Checks that every op of ops.def has a test and a name.
#include <fstream>

#include "../recorded.hpp"
#include "rig.hpp"

TEST(Coverage, EveryOpHasACase) {
  std::ifstream file(tests::source_file("kernels/ops.def"));
  ASSERT_TRUE(file.good());
  int ops = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("OP", 0) != 0) continue;
    const size_t begin = line.find('(') + 1;
    std::string name = line.substr(begin, line.find(',') - begin);
    EXPECT_EQ(name, kernels::name_of(kernels::Op(ops))) << "order of ops.def";
    EXPECT_TRUE(rig::covered().count(name)) << "no test COVERS(" << name << ")";
    ++ops;
  }
  EXPECT_EQ(ops, int(kernels::Op::count));
  EXPECT_LE(ops, device::Queue::kMaxOps);
  EXPECT_STREQ(kernels::name_of(kernels::Op::count), "?");
}
