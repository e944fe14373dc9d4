// SPDX-License-Identifier: Apache-2.0
// The binary counter adds along one fixed tree, neighbours first. The tests check expressions, not
// numbers.
#include "base/tree_sum.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace {

// Writes out the tree: ((0 1)(2 3)) and so on.
std::string balanced(long begin, long end) {
  if (end - begin == 1) return std::to_string(begin);
  long half = (end - begin) / 2;
  return fmt::format("({}+{})", balanced(begin, begin + half), balanced(begin + half, end));
}
// Writes out a count that is not a power of two: complete subtrees of its binary digits, largest
// first, folded from the newest.
std::string expected(long begin, long end) {
  long power = 1;
  while (power * 2 <= end - begin) power *= 2;
  if (power == end - begin) return balanced(begin, end);
  return fmt::format("({}+{})", balanced(begin, begin + power), expected(begin + power, end));
}

struct Result {
  std::string text;
  int most_slots = 0;
};
Result run(base::TreeSum& sum, long leaves) {
  Result r;
  std::vector<std::string> slots(64);
  auto add = [&](int into, int from) {
    EXPECT_EQ(from, into + 1) << "only neighbouring slots are added";
    slots[size_t(into)] = fmt::format("({}+{})", slots[size_t(into)], slots[size_t(from)]);
    slots[size_t(from)].clear();
  };
  for (long i = 0; i < leaves; ++i) {
    int slot = sum.next_slot();
    r.most_slots = std::max(r.most_slots, slot + 1);
    slots[size_t(slot)] = std::to_string(i);
    sum.push(add);
  }
  sum.finish(add);
  r.text = slots[0];
  return r;
}

TEST(TreeSum, PowersOfTwoFollowTheBalancedTree) {
  for (long n : {1, 2, 4, 8, 16, 64, 256}) {
    base::TreeSum sum;
    EXPECT_EQ(run(sum, n).text, balanced(0, n)) << n;
  }
  base::TreeSum sum;
  EXPECT_EQ(run(sum, 8).text, "(((0+1)+(2+3))+((4+5)+(6+7)))");
}

TEST(TreeSum, OtherCountsFoldWhatIsLeftFromTheNewest) {
  for (long n = 1; n <= 70; ++n) {
    base::TreeSum sum;
    EXPECT_EQ(run(sum, n).text, expected(0, n)) << n;
  }
  base::TreeSum sum;
  EXPECT_EQ(run(sum, 7).text, "(((0+1)+(2+3))+((4+5)+6))");
}

TEST(TreeSum, NeedsNoMoreSlotsThanItSays) {
  EXPECT_EQ(base::TreeSum::slots(1), 1);
  EXPECT_EQ(base::TreeSum::slots(2), 2);
  EXPECT_EQ(base::TreeSum::slots(3), 3);
  EXPECT_EQ(base::TreeSum::slots(4), 3);
  EXPECT_EQ(base::TreeSum::slots(1024), 11);
  for (long n = 1; n <= 300; ++n) {
    base::TreeSum sum;
    EXPECT_LE(run(sum, n).most_slots, base::TreeSum::slots(n)) << n;
  }
  base::TreeSum sum;
  EXPECT_EQ(run(sum, 64).most_slots, base::TreeSum::slots(64)) << "64 parts use all slots";
}

TEST(TreeSum, IsReadyAgainAfterFinish) {
  base::TreeSum sum;
  EXPECT_EQ(run(sum, 5).text, expected(0, 5));
  EXPECT_EQ(sum.next_slot(), 0);
  EXPECT_EQ(run(sum, 8).text, balanced(0, 8));
  EXPECT_EQ(run(sum, 3).text, expected(0, 3));
}

// Level "mesh" relies on this: parts that are first added along their own trees give the same tree.
TEST(TreeSum, AlignedPartsComposeToTheWholeTree) {
  for (long parts : {2, 4, 8})
    for (long each : {1, 2, 4, 16}) {
      std::vector<std::string> done;
      for (long p = 0; p < parts; ++p) done.push_back(balanced(p * each, (p + 1) * each));
      std::vector<std::string> slots(64);
      base::TreeSum sum;
      auto add = [&](int into, int from) {
        slots[size_t(into)] = fmt::format("({}+{})", slots[size_t(into)], slots[size_t(from)]);
      };
      for (const std::string& d : done) {
        slots[size_t(sum.next_slot())] = d;
        sum.push(add);
      }
      sum.finish(add);
      EXPECT_EQ(slots[0], balanced(0, parts * each));
    }
}

}  // namespace
