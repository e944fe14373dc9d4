// SPDX-License-Identifier: Apache-2.0
// Tests the mesh that a number of ranks gets, and the counts of a plan's communicators.
#include "comm/mesh.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace {

using comm::MeshOptions;
using comm::MeshShape;

MeshOptions mesh(int64_t replica, int64_t fsdp, std::vector<comm::MeshRule> rules = {}) {
  MeshOptions o;
  o.replica = replica;
  o.fsdp = fsdp;
  o.rules = std::move(rules);
  return o;
}

void expect_shape(const MeshOptions& options, int ranks, int replica, int fsdp,
                  const std::string& selector = "") {
  MeshShape s = comm::resolve_mesh(options, ranks, selector);
  EXPECT_EQ(s.replica, replica) << ranks << " ranks, selector \"" << selector << "\"";
  EXPECT_EQ(s.fsdp, fsdp) << ranks << " ranks, selector \"" << selector << "\"";
  EXPECT_EQ(s.ranks(), ranks);
}

// Checks that the mesh is refused with exit code 3 and that the message has everything in `parts`.
void expect_refused(const MeshOptions& options, int ranks, const std::vector<std::string>& parts,
                    const std::string& selector = "") {
  try {
    MeshShape s = comm::resolve_mesh(options, ranks, selector);
    ADD_FAILURE() << ranks << " ranks gave " << s.replica << "x" << s.fsdp;
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::Exit::mesh);
    for (const std::string& part : parts)
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos)
          << part << " is missing from: " << e.what();
  }
}

TEST(Mesh, TheDefaultIsDataParallel) {
  for (int ranks : {1, 2, 3, 7, 32}) expect_shape({}, ranks, ranks, 1);
}

TEST(Mesh, InfersOneAxis) {
  expect_shape(mesh(-1, 4), 4, 1, 4);
  expect_shape(mesh(-1, 4), 12, 3, 4);
  expect_shape(mesh(2, -1), 8, 2, 4);
  expect_shape(mesh(1, -1), 5, 1, 5);
}

TEST(Mesh, TakesBothAxesWhenTheyFit) {
  expect_shape(mesh(2, 3), 6, 2, 3);
  expect_shape(mesh(1, 1), 1, 1, 1);
}

TEST(Mesh, RefusesRanksThatDoNotFit) {
  expect_refused(mesh(-1, 4), 6,
                 {"[mesh]", "fsdp = 4", "6 ranks", "not divisible by 4", "mesh.fsdp"});
  expect_refused(mesh(4, -1), 6, {"replica = 4", "mesh.replica"});
  expect_refused(mesh(2, 2), 3, {"replica = 2 x fsdp = 2", "3 ranks", "mpirun -np 4"});
  expect_refused(mesh(2, 2), 8, {"8 ranks", "product is 4"});
  expect_refused(mesh(-1, 4), 1, {"1 rank:"});  // fewer ranks than the known axis
}

TEST(Mesh, TheFirstRuleThatMatchesWins) {
  MeshOptions o = mesh(-1, 1, {{"gpu-.*", 2, -1}, {"gpu-big", 1, -1}, {"cpu.*", -1, 4}});
  expect_shape(o, 8, 2, 4, "gpu-small");
  expect_shape(o, 8, 2, 4, "gpu-big");  // the first rule wins, not the second
  expect_shape(o, 8, 2, 4, "cpu");
  expect_shape(o, 8, 8, 1, "");  // no selector
}

TEST(Mesh, ASelectorThatMatchesNoRuleIsRefused) {
  MeshOptions o = mesh(-1, 1, {{"gpu-.*", 2, -1}, {"cpu.*", -1, 4}});
  expect_refused(o, 8, {"--mesh-selector", "\"other\"", "\"gpu-.*\", \"cpu.*\""}, "other");
  // The whole selector must match, not a part.
  expect_refused(o, 8, {"matches no [[mesh.rule]]"}, "my-gpu-1");
  expect_refused(mesh(-1, 1), 8, {"the deck has none"}, "gpu-1");
}

TEST(Mesh, RanksThatTheDeckAsksFor) {
  MeshOptions o = mesh(4, -1, {{"gpu", 2, 3}});
  EXPECT_EQ(comm::wanted_ranks(o, ""), 4);
  EXPECT_EQ(comm::wanted_ranks(o, "gpu"), 6);
  EXPECT_EQ(comm::wanted_ranks(mesh(comm::kMostRanks, comm::kMostRanks), ""), int64_t{1} << 40);
}

TEST(Mesh, ARefusalNamesTheRule) {
  MeshOptions o = mesh(-1, 1, {{"gpu-.*", 2, 2}});
  expect_refused(o, 3, {"[[mesh.rule]] match = \"gpu-.*\"", "3 ranks"}, "gpu-1");
}

std::vector<std::string> problems_of(const std::string& deck, MeshOptions& into) {
  return config::Deck(config::DeckSource{"mesh.toml", deck, {}}, into).problems().lines;
}

TEST(MeshOptions, AreReadFromADeck) {
  MeshOptions o;
  EXPECT_TRUE(
      problems_of("replica = 2\nfsdp = -1\n[[rule]]\nmatch = 'a.*'\nfsdp = 4\n", o).empty());
  expect_shape(o, 6, 2, 3);
  expect_shape(o, 8, 2, 4, "abc");
}

TEST(MeshOptions, WhatCannotBeAMeshIsAnErrorOfTheDeck) {
  auto refused = [](const std::string& deck, const std::string& line, const std::string& text) {
    MeshOptions o;
    std::vector<std::string> found = problems_of(deck, o);
    ASSERT_EQ(found.size(), 1u) << deck;
    EXPECT_EQ(found[0].find(line), 0u) << found[0];
    EXPECT_NE(found[0].find(text), std::string::npos) << found[0];
  };
  refused("replica = -1\nfsdp = -1\n", "mesh.toml:2: fsdp", "only one");
  refused("fsdp = 0\n", "mesh.toml:1: fsdp", "0 is not a size");
  refused("replica = 0\n", "mesh.toml:1: replica", "0 is not a size");
  refused("replica = -2\n", "mesh.toml:1: replica", "-1");
  refused("[[rule]]\nmatch = '('\nfsdp = 2\n", "mesh.toml:2: rule[0].match", "regular expression");
  refused("[[rule]]\nfsdp = 2\n", "mesh.toml:1: rule[0].match", "missing");
  // Both axes of the rule are inferred.
  refused("[[rule]]\nmatch = 'x'\n", "mesh.toml:1: rule[0].fsdp", "only one");
  refused("[[rule]]\nmatch = 'x'\nfsdp = 0\n", "mesh.toml:3: rule[0].fsdp", "0 is not a size");
}

TEST(PlanComm, CountsAndMovesNothing) {
  auto c = comm::make_plan_comm(4, 2);
  EXPECT_EQ(c->size(), 4);
  EXPECT_EQ(c->rank(), 2);
  std::vector<float> a(8, 1), b(32, 2);
  c->all_gather(device::view(a.data(), 8), device::view(b.data(), 32)).wait();
  c->all_gather(device::view(a.data(), 8), device::view(b.data(), 32)).wait();
  c->reduce_scatter(device::view(b.data(), 32), device::view(a.data(), 8)).wait();
  c->all_reduce(device::view(a.data(), 5)).wait();
  EXPECT_EQ(c->gathered().calls, 2);
  EXPECT_EQ(c->gathered().bytes, 2 * 128);
  EXPECT_EQ(c->scattered().calls, 1);
  EXPECT_EQ(c->scattered().bytes, 128);
  EXPECT_EQ(c->reduced().calls, 1);
  EXPECT_EQ(c->reduced().bytes, 20);
  EXPECT_EQ(c->seconds(), 0);
  EXPECT_EQ(a, std::vector<float>(8, 1));
  EXPECT_EQ(b, std::vector<float>(32, 2));
  c->reset_traffic();
  EXPECT_EQ(c->gathered().calls + c->scattered().calls + c->reduced().calls, 0);
  EXPECT_TRUE(c->same(77));
  EXPECT_EQ(c->sum(int64_t{3}), 12);
  EXPECT_EQ(c->gather_text("x"), std::vector<std::string>(4, "x"));
}

TEST(PlanComm, OneRankSendsNothing) {
  auto c = comm::make_plan_comm(1);
  std::vector<float> a(8);
  c->all_gather(device::view(a.data(), 8), device::view(a.data(), 8)).wait();
  c->reduce_scatter(device::view(a.data(), 8), device::view(a.data(), 8)).wait();
  c->all_reduce(device::view(a.data(), 8)).wait();
  EXPECT_EQ(c->gathered().calls + c->scattered().calls + c->reduced().calls, 0);
}

TEST(PlanComm, NothingToReduceIsNoCall) {
  auto c = comm::make_plan_comm(2);
  std::vector<float> a(1);
  c->all_reduce(device::view(a.data(), 0)).wait();
  EXPECT_EQ(c->reduced().calls, 0);
}

TEST(PlanMesh, IsSeenFromRankZero) {
  auto world = comm::make_plan_comm(6);
  comm::Mesh m = comm::make_plan_mesh({2, 3}, *world);
  EXPECT_EQ(m.fsdp->size(), 3);
  EXPECT_EQ(m.replica->size(), 2);
  EXPECT_EQ(m.world->size(), 6);
  EXPECT_EQ(m.rank(), 0);
}

}  // namespace
