// SPDX-License-Identifier: Apache-2.0
// Tests the properties of the modes' rows that main and the command line rely on.
#include <gtest/gtest.h>

#include <set>

#include "modes/mode.hpp"

namespace modes {
namespace {

TEST(Modes, HaveANameADocAndAFunction) {
  std::set<std::string> names;
  for (const Mode& mode : registry()) {
    EXPECT_TRUE(names.insert(mode.name).second) << mode.name << " occurs twice";
    EXPECT_FALSE(mode.doc.empty()) << mode.name;
    EXPECT_TRUE(mode.run != nullptr) << mode.name;
    EXPECT_EQ(&registry().at(mode.name), &mode);
  }
  EXPECT_THROW(registry().at("trian"), base::Error);
}

// Ranks agree on the lock of a run directory, and a planned job has no ranks.
TEST(Modes, NeedWhatTheirNeedsImply) {
  for (const Mode& mode : registry()) {
    EXPECT_TRUE(mode.on_ranks || !mode.keeps_run_directory) << mode.name;
    EXPECT_FALSE(mode.on_ranks && mode.on_paper) << mode.name;
  }
}

}  // namespace
}  // namespace modes
