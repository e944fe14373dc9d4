// SPDX-License-Identifier: Apache-2.0
// Tests the places of parameters in units, and the owners of elements.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "shard/parameter.hpp"

namespace {

using shard::Layout;
using shard::Parameter;
using shard::Placement;
using shard::Segment;
using shard::ShardingOptions;
using shard::Strategy;
using shard::Unit;

const std::vector<std::string> kBlocks = {"stem", "block", "head"};

// Odd sizes, several blocks, one frozen tensor.
std::vector<Parameter> parameters() {
  std::vector<Parameter> p;
  auto add = [&](const std::string& path, std::vector<int64_t> shape, int block,
                 bool trainable = true) {
    p.push_back({.path = path,
                 .shape = std::move(shape),
                 .init = {},
                 .block = block,
                 .kind = trainable ? shard::ParameterKind::trained : shard::ParameterKind::frozen});
  };
  add("stem/kernel", {3, 5, 7}, 0);
  add("stem/bias", {7}, 0);
  add("stem/table", {1, 33}, 0, false);
  add("block/norm/scale", {1}, 1);
  add("block/kernel", {17, 19}, 1);
  add("block/frozen", {16}, 1, false);
  add("block/out", {64, 3}, 1);
  add("head/kernel", {7, 61}, 2);
  add("head/bias", {61}, 2);
  return p;
}

ShardingOptions sharding(const std::string& parameters, const std::string& optimizer,
                         std::vector<shard::ShardingRule> rules = {}) {
  ShardingOptions o;
  o.parameters = base::value_of(shard::kPlacementNames, parameters);
  o.optimizer = base::value_of(shard::kPlacementNames, optimizer);
  o.rules = std::move(rules);
  return o;
}

std::vector<ShardingOptions> strategies() {
  return {sharding("replicated", "replicated"), sharding("replicated", "sharded"),
          sharding("sharded", "sharded"),
          sharding("sharded", "sharded",
                   {{".*/bias", Placement::replicated, Placement::replicated},
                    {"block/.*", Placement::replicated, Placement::inherited}})};
}

struct Shape {
  int fsdp;
  int64_t cuts;
};
const std::vector<Shape> kShapes = {{1, 1},  {2, 2},  {3, 3},  {4, 4}, {1, 16},
                                    {2, 16}, {4, 16}, {8, 64}, {3, 12}};

TEST(Layout, EveryParameterHasOnePlaceInAUnitOfItsKind) {
  for (const ShardingOptions& options : strategies())
    for (Shape shape : kShapes) {
      Layout layout(parameters(), kBlocks, options, shape.fsdp, shape.cuts);
      std::vector<int> seen(layout.parameters().size());
      for (size_t u = 0; u < layout.units().size(); ++u) {
        const Unit& unit = layout.units()[u];
        int64_t end = 0;
        for (int i : unit.parameters) {
          const Parameter& p = layout.parameters()[size_t(i)];
          ++seen[size_t(i)];
          EXPECT_EQ(p.unit, int(u));
          EXPECT_EQ(p.block, unit.block);
          EXPECT_EQ(p.trained(), unit.trained());
          EXPECT_TRUE(options.strategy_of(p.path) == unit.strategy) << p.path;
          EXPECT_EQ(p.size, p.count());
          EXPECT_GE(p.offset, end) << p.path << " overlaps its neighbour";
          EXPECT_LT(p.offset - end, 16) << "padding beyond alignment";
          EXPECT_EQ(p.offset % 16, 0) << p.path << " does not begin on a line of 64 bytes";
          end = p.offset + p.size;
        }
        EXPECT_EQ(unit.cuts, shape.cuts);
        EXPECT_GE(unit.length, end);
        EXPECT_LT(unit.length - end, 16 * shape.cuts) << "more padding than the cuts need";
        EXPECT_EQ(unit.length % (16 * shape.cuts), 0);
        EXPECT_EQ(unit.cut_length() * unit.cuts, unit.length);
        EXPECT_FALSE(unit.parameters.empty());
      }
      for (int n : seen) EXPECT_EQ(n, 1);
    }
}

TEST(Layout, UnitsBelongToBlocksAndDifferWithinThem) {
  for (const ShardingOptions& options : strategies()) {
    Layout layout(parameters(), kBlocks, options, 2, 2);
    ASSERT_EQ(layout.units_of_block().size(), kBlocks.size());
    size_t all = 0;
    std::set<std::string> names;
    for (size_t b = 0; b < kBlocks.size(); ++b) {
      std::vector<std::vector<bool>> kinds;
      for (int u : layout.units_of_block()[b]) {
        const Unit& unit = layout.units()[size_t(u)];
        EXPECT_EQ(unit.block, int(b));
        EXPECT_EQ(unit.name.rfind(kBlocks[b], 0), 0u) << unit.name;
        names.insert(unit.name);
        kinds.push_back(
            {unit.strategy.parameters_sharded, unit.strategy.optimizer_sharded, unit.trained()});
        ++all;
      }
      std::sort(kinds.begin(), kinds.end());
      EXPECT_EQ(std::adjacent_find(kinds.begin(), kinds.end()), kinds.end())
          << "two units of one kind in " << kBlocks[b];
    }
    EXPECT_EQ(all, layout.units().size());
    EXPECT_EQ(names.size(), layout.units().size()) << "each unit has its own name";
  }
  Layout layout(parameters(), kBlocks, strategies()[0], 1, 1);
  EXPECT_EQ(layout.units_of_block()[0].size(), 2u);  // trainable and frozen
  EXPECT_EQ(layout.units_of_block()[2].size(), 1u);
}

// Equal parts of a unit have equal optimizer state, whichever tensors they hold.
TEST(Layout, EveryRankKeepsAnEqualPartOfTheStatePerElement) {
  std::vector<Parameter> given = parameters();
  for (Parameter& p : given)
    if (p.trained()) p.element_state_bytes = p.shape.size() > 1 ? 2 : 6;
  constexpr int kRanks = 4;
  Layout layout(given, kBlocks, sharding("sharded", "sharded"), kRanks, kRanks);
  int64_t whole = 0;
  for (const Parameter& p : layout.parameters()) {
    whole += p.size * p.element_state_bytes;
    EXPECT_EQ(layout.units()[size_t(p.unit)].element_state_bytes, p.element_state_bytes) << p.path;
  }
  int64_t per_rank = 0;  // padding included, equal on all ranks
  for (size_t u = 0; u < layout.units().size(); ++u)
    per_rank += layout.owned_count(int(u)) * layout.units()[u].element_state_bytes;
  EXPECT_GE(per_rank, whole / kRanks);
  EXPECT_LE(per_rank,
            whole / kRanks + 6 * 16 * int64_t(layout.units().size() + layout.parameters().size()));
}

// Adds one to each element of each parameter that a range covers, and checks the reported places.
void count(const Layout& layout, int unit, int64_t begin, int64_t n,
           std::vector<std::vector<int>>& seen) {
  int64_t before = 0;
  for (const Segment& s : layout.segments(unit, begin, n)) {
    const Parameter& p = layout.parameters()[size_t(s.parameter)];
    EXPECT_EQ(p.unit, unit);
    EXPECT_LT(s.begin, s.end);
    EXPECT_GE(s.offset, before) << "in the order of the offsets";
    EXPECT_EQ(begin + s.offset, p.offset + s.begin);
    EXPECT_LE(s.offset + s.count(), n);
    before = s.offset + s.count();
    for (int64_t i = s.begin; i < s.end; ++i) ++seen[size_t(s.parameter)].at(size_t(i));
  }
}

void expect_each_once(const Layout& layout, const std::vector<std::vector<int>>& seen,
                      int sharded_times, int replicated_times) {
  for (size_t i = 0; i < seen.size(); ++i) {
    const Unit& unit = layout.units()[size_t(layout.parameters()[i].unit)];
    int expected = unit.strategy.optimizer_sharded ? sharded_times : replicated_times;
    for (size_t k = 0; k < seen[i].size(); ++k)
      ASSERT_EQ(seen[i][k], expected) << layout.parameters()[i].path << " element " << k;
  }
}

std::vector<std::vector<int>> nothing_seen(const Layout& layout) {
  std::vector<std::vector<int>> seen;
  for (const Parameter& p : layout.parameters()) seen.emplace_back(size_t(p.size));
  return seen;
}

TEST(Layout, RanksOwnEveryElementExactlyOnce) {
  for (const ShardingOptions& options : strategies())
    for (Shape shape : kShapes) {
      Layout layout(parameters(), kBlocks, options, shape.fsdp, shape.cuts);
      auto seen = nothing_seen(layout);
      for (int u = 0; u < int(layout.units().size()); ++u) {
        const Unit& unit = layout.units()[size_t(u)];
        int64_t end = 0;
        for (int f = 0; f < shape.fsdp; ++f) {
          int64_t begin = layout.owned_begin(u, f), n = layout.owned_count(u);
          if (unit.strategy.optimizer_sharded) {
            EXPECT_EQ(begin, end) << "parts follow each other";
            EXPECT_EQ(n * shape.fsdp, unit.length) << "equal parts";
            EXPECT_EQ(layout.owned_cuts(u) * shape.fsdp, unit.cuts);
          } else {
            EXPECT_EQ(begin, 0);
            EXPECT_EQ(n, unit.length);
            EXPECT_EQ(layout.owned_cuts(u), unit.cuts);
          }
          EXPECT_EQ(layout.owned_cuts(u) * unit.cut_length(), n) << "whole cuts";
          count(layout, u, begin, n, seen);
          end = begin + n;
        }
      }
      expect_each_once(layout, seen, 1, shape.fsdp);
    }
}

TEST(Layout, CutsCoverEveryElementExactlyOnce) {
  for (Shape shape : kShapes) {
    Layout layout(parameters(), kBlocks, strategies()[3], shape.fsdp, shape.cuts);
    auto seen = nothing_seen(layout);
    for (int u = 0; u < int(layout.units().size()); ++u)
      for (int64_t c = 0; c < layout.units()[size_t(u)].cuts; ++c)
        count(layout, u, c * layout.units()[size_t(u)].cut_length(),
              layout.units()[size_t(u)].cut_length(), seen);
    expect_each_once(layout, seen, 1, 1);
  }
}

// Level "mesh" relies on this: with the same cuts, no part of a unit depends on the number of
// ranks.
TEST(Layout, WithTheSameCutsTheUnitsAreTheSameOnEveryMesh) {
  for (const ShardingOptions& options : strategies()) {
    Layout one(parameters(), kBlocks, options, 1, 16);
    for (int fsdp : {2, 4, 8, 16}) {
      Layout other(parameters(), kBlocks, options, fsdp, 16);
      ASSERT_EQ(one.units().size(), other.units().size());
      for (size_t u = 0; u < one.units().size(); ++u) {
        EXPECT_EQ(one.units()[u].length, other.units()[u].length);
        EXPECT_EQ(one.units()[u].cuts, other.units()[u].cuts);
        EXPECT_EQ(one.units()[u].parameters, other.units()[u].parameters);
      }
      for (size_t p = 0; p < one.parameters().size(); ++p)
        EXPECT_EQ(one.parameters()[p].offset, other.parameters()[p].offset);
    }
  }
}

// State is sharded and padded like weights, in its own units.
TEST(Layout, StateLiesInUnitsOfItsOwn) {
  std::vector<Parameter> all = parameters();
  all.push_back({.path = "stem/mean",
                 .shape = {19},
                 .init = {},
                 .block = 0,
                 .kind = shard::ParameterKind::state});
  for (const ShardingOptions& options : strategies()) {
    Layout layout(all, kBlocks, options, 4, 16), without(parameters(), kBlocks, options, 4, 16);
    ASSERT_EQ(layout.units().size(), without.units().size() + 1);
    const Unit& unit = layout.units()[size_t(layout.parameters().back().unit)];
    EXPECT_EQ(unit.kind, shard::ParameterKind::state);
    EXPECT_FALSE(unit.trained());
    EXPECT_EQ(unit.parameters, std::vector<int>{int(all.size()) - 1});
    EXPECT_EQ(unit.length % (16 * shard::kLine), 0);
    for (size_t p = 0; p + 1 < all.size(); ++p)
      EXPECT_EQ(layout.parameters()[p].offset, without.parameters()[p].offset);
  }
}

TEST(Layout, FindsAndCounts) {
  Layout layout(parameters(), kBlocks, strategies()[0], 1, 1);
  EXPECT_EQ(layout.find("stem/kernel"), 0);
  EXPECT_EQ(layout.find("head/bias"), 8);
  EXPECT_EQ(layout.find("head"), -1);
  EXPECT_EQ(layout.total_elements(), 105 + 7 + 33 + 1 + 323 + 16 + 192 + 427 + 61);
  EXPECT_TRUE(layout.segments(0, 5, 0).empty());
}

TEST(Layout, CutsMustBeAMultipleOfTheRanks) {
  EXPECT_THROW(Layout(parameters(), kBlocks, strategies()[2], 4, 6), base::Error);
  EXPECT_THROW(Layout(parameters(), kBlocks, strategies()[2], 4, 2), base::Error);
}

TEST(Strategy, TheFirstRuleThatMatchesTheWholePathWins) {
  ShardingOptions o = sharding("sharded", "sharded",
                               {{"a/.*", Placement::replicated, Placement::replicated},
                                {"a/b", Placement::sharded, Placement::sharded},
                                {".*/c", Placement::replicated, Placement::inherited}});
  EXPECT_TRUE((o.strategy_of("a/b") == Strategy{false, false}));
  EXPECT_TRUE((o.strategy_of("a/c") == Strategy{false, false})) << "the first, not the best";
  EXPECT_TRUE((o.strategy_of("x/c") == Strategy{false, true})) << "an empty value is the default";
  EXPECT_TRUE((o.strategy_of("x/c/d") == Strategy{true, true})) << "the whole path must match";
  EXPECT_TRUE((o.strategy_of("xa/b") == Strategy{true, true}));
  EXPECT_TRUE((sharding("replicated", "replicated").strategy_of("x") == Strategy{false, false}));
}

// The published rule (cappa.md 6.2): a parameter is sharded if elements * 4 > MiB * 2^20.
TEST(Strategy, SmallParametersStayReplicated) {
  ShardingOptions o =
      sharding("sharded", "sharded", {{"rule/.*", Placement::replicated, Placement::sharded}});
  const Strategy none{false, false}, both{true, true};
  EXPECT_TRUE(o.strategy_of("x", 1) == both) << "0 = none";
  o.min_size_to_shard_mb = 4;
  EXPECT_TRUE(o.strategy_of("x", 768 * 768) == none);
  EXPECT_TRUE(o.strategy_of("x", 1 << 20) == none) << "exactly 4 MiB";
  EXPECT_TRUE(o.strategy_of("x", (1 << 20) + 1) == both);
  EXPECT_TRUE(o.strategy_of("x", 768 * 3072) == both);
  EXPECT_TRUE(o.strategy_of("rule/x", 768 * 768) == none);
  EXPECT_TRUE((o.strategy_of("rule/x", 768 * 3072) == Strategy{false, true}));
  o.min_size_to_shard_mb = 400.0 / 0x1p20;  // 100 elements
  Layout layout(parameters(), kBlocks, o, 2, 2);
  std::set<std::string> sharded;
  for (const Parameter& p : layout.parameters())
    if (layout.units()[size_t(p.unit)].strategy == both) sharded.insert(p.path);
  EXPECT_EQ(sharded,
            (std::set<std::string>{"stem/kernel", "block/kernel", "block/out", "head/kernel"}));
}

void expect_refused(const std::function<void()>& call) {
  try {
    call();
    FAIL() << "sharded parameters with a replicated optimizer were accepted";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::Exit::config);
    EXPECT_NE(std::string(e.what()).find("head/bias"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("optimizer = \"sharded\""), std::string::npos) << e.what();
  }
}

TEST(Strategy, ShardedParametersWithAReplicatedOptimizerAreRefused) {
  ShardingOptions o = sharding("replicated", "replicated",
                               {{"head/bias", Placement::sharded, Placement::inherited}});
  expect_refused([&] { o.strategy_of("head/bias"); });
  expect_refused([&] { Layout(parameters(), kBlocks, o, 2, 2); });
  EXPECT_NO_THROW(o.strategy_of("head/kernel"));
}

TEST(Strategy, TheDeckIsRefusedWithItsLine) {
  auto problems = [](const std::string& deck) {
    ShardingOptions o;
    return config::Deck(config::DeckSource{"s.toml", deck, {}}, o).problems().lines;
  };
  EXPECT_TRUE(problems("parameters = 'sharded'\noptimizer = 'sharded'\nprefetch = 0\n").empty());
  auto refused = problems("parameters = 'sharded'\noptimizer = 'replicated'\n");
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].rfind("s.toml:2: optimizer", 0), 0u) << refused[0];
  EXPECT_EQ(problems("parameters = 'shraded'\n").size(), 1u);
  auto regex = problems("[[rule]]\nmatch = '['\n");
  ASSERT_EQ(regex.size(), 1u);
  EXPECT_EQ(regex[0].rfind("s.toml:2: rule[0].match: not a regular expression", 0), 0u) << regex[0];
  EXPECT_EQ(problems("prefetch = 2\n").size(), 1u);
}

}  // namespace
