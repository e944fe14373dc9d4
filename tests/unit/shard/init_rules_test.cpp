// SPDX-License-Identifier: Apache-2.0
// Tests initial distributions by rule: the first match wins, states keep theirs, and keys are
// checked.
#include "shard/init_rules.hpp"

#include <gtest/gtest.h>

#include "shard/initialise.hpp"

namespace {

using shard::Init;
using shard::InitRule;
using shard::Parameter;
using shard::ParameterKind;

const Init kSmallXavier{.kind = Init::Kind::xavier_uniform, .fan_in = 4, .fan_out = 8};

std::vector<Parameter> small_model() {
  return {{.path = "a/kernel", .shape = {4, 8}, .init = kSmallXavier},
          {.path = "a/bias", .shape = {8}, .init = {}},
          {.path = "b/kernel", .shape = {4, 8}, .init = kSmallXavier},
          {.path = "b/mean", .shape = {8}, .init = {}, .kind = ParameterKind::state}};
}

TEST(InitRules, TheFirstMatchWins) {
  std::vector<Parameter> p = small_model();
  shard::apply_init_rules({{.match = "a/.*", .kind = Init::Kind::normal, .scale = 0.02},
                           {.match = ".*/kernel", .kind = Init::Kind::lecun_normal, .scale = 3},
                           {.match = ".*", .kind = Init::Kind::constant, .scale = -4.6}},
                          p);
  EXPECT_EQ(p[0].init.kind, Init::Kind::normal);
  EXPECT_EQ(p[0].init.std, 0.02);
  EXPECT_EQ(p[1].init.kind, Init::Kind::normal);
  EXPECT_EQ(p[2].init.kind, Init::Kind::lecun_normal);
  EXPECT_EQ(p[2].init.scale, 3);
  EXPECT_EQ(p[2].init.fan_in, 4);
  EXPECT_EQ(p[3].init.kind, Init::Kind::zeros) << "a state keeps its own";
}

// A factor multiplies each value.
TEST(InitRules, ScalesWhatFansGive) {
  for (const Init::Kind kind : {Init::Kind::lecun_normal, Init::Kind::xavier_uniform}) {
    std::vector<Parameter> one = small_model(), twice = small_model();
    shard::apply_init_rules({{.match = ".*/kernel", .kind = kind}}, one);
    shard::apply_init_rules({{.match = ".*/kernel", .kind = kind, .scale = 2}}, twice);
    std::vector<float> x(32), y(32);
    shard::initial_values(one[0], 1, 0, 32, x.data());
    shard::initial_values(twice[0], 1, 0, 32, y.data());
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(2 * x[i], y[i]);
    EXPECT_NE(x[0], 0);
  }
}

TEST(InitRules, RefusesFansThatAParameterLacks) {
  std::vector<Parameter> p = small_model();
  try {
    shard::apply_init_rules({{.match = ".*", .kind = Init::Kind::lecun_normal}}, p);
    ADD_FAILURE() << "a bias has no fans";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::Exit::config);
    EXPECT_NE(std::string(e.what()).find("model.init[0].kind: kind = \"lecun_normal\" needs"),
              std::string::npos)
        << e.what();
    EXPECT_NE(std::string(e.what()).find("a/bias"), std::string::npos);
  }
}

std::string problems_of(const std::string& keys) {
  struct Root {
    std::vector<InitRule> init;
    void bind(config::Table& t) { t.list("init", init, ""); }
  } root;
  const config::Deck deck({"deck.toml", "[[init]]\n" + keys, {}}, root);
  try {
    deck.throw_if_any();
  } catch (const base::Error& e) {
    return e.what();
  }
  return "";
}

TEST(InitRules, KeysAreChecked) {
  EXPECT_EQ(problems_of("match = \".*/kernel\"\nkind = \"normal\"\nscale = 0.02\n"), "");
  EXPECT_EQ(problems_of("match = \".*/scale\"\nkind = \"zeros\"\n"), "");
  for (auto [keys, part] : {std::pair{"kind = \"ones\"\n", "match"},
                            {"match = \".*\"\n", "kind"},
                            {"match = \"(\"\nkind = \"ones\"\n", "init[0].match"},
                            {"match = \".*\"\nkind = \"normall\"\n", "normal"},
                            {"match = \".*\"\nkind = \"ones\"\nscale = 2\n", "has no effect"}})
    EXPECT_NE(problems_of(keys).find(part), std::string::npos) << problems_of(keys);
}

}  // namespace
