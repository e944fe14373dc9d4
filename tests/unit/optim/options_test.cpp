// SPDX-License-Identifier: Apache-2.0
// Tests [optimizer], [[optimizer.rule]] and [schedule.*], from the deck to each parameter's policy.
#include "optim/options.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "optim/adafactor.hpp"
#include "optim/adamw.hpp"
#include "optim/momentum.hpp"
#include "optim/sgd.hpp"

namespace {

struct Root {
  optim::OptimizerOptions optimizer;
  optim::ScheduleTables schedules;
  void bind(config::Table& t) {
    t.table("optimizer", optimizer, "");
    t.named("schedule", schedules, "");
  }
};

std::vector<std::string> problems(const std::string& text, Root& root) {
  config::Deck deck(config::DeckSource{"deck.toml", text, {}}, root);
  return deck.problems().lines;
}

const std::vector<std::string> paths = {"encoder/embedding/kernel",
                                        "encoder/embedding/bias",
                                        "decoder/EmbedTargets/embedding",
                                        "decoder/LogitsDense/kernel",
                                        "kernel",
                                        "mykernel"};

bool mentions(const std::vector<optim::Problem>& problems, const std::string& key,
              const std::string& text) {
  return std::any_of(problems.begin(), problems.end(), [&](const optim::Problem& p) {
    return p.key == key && p.text.find(text) != std::string::npos;
  });
}

TEST(Options, PublishedDeck) {
  Root root;
  EXPECT_EQ(problems(R"(
[optimizer]
kind          = "adafactor"
learning_rate = 1e-3
weight_decay  = 1e-4
clip_norm     = 1.0
beta2_decay   = 0.8
beta2_cap     = 0.999
momentum      = 0.9
momentum_type = "bf16"
factor_min    = 32
eps           = 1e-30
[[optimizer.rule]]
match        = ".*/kernel"
decay_scale  = 1.0
[[optimizer.rule]]
match        = ".*"
decay_scale  = 0.0
[schedule.default]
kind           = "cosine"
warmup_steps   = 10_000
cooldown_steps = 0
)",
                     root),
            std::vector<std::string>{});
  EXPECT_EQ(root.optimizer.learning_rate, 1e-3);
  EXPECT_NE(dynamic_cast<const optim::AdafactorOptions*>(&root.optimizer.method_options()),
            nullptr);
  const auto policies = optim::resolve_policies(root.optimizer, root.schedules, paths);
  EXPECT_TRUE(policies.problems.empty());
  const std::vector<double> decay = {1, 0, 0, 1, 0, 0};
  for (size_t p = 0; p < paths.size(); ++p)
    EXPECT_EQ(policies.parameters[p].decay_scale, decay[p]) << paths[p];
  EXPECT_EQ(policies.schedules, std::vector<std::string>{"default"});
  const auto schedules =
      optim::make_schedules(policies.schedules, root.schedules, {366500, 8192, 82783});
  EXPECT_EQ(schedules[0].at(5000), 0.5f);
  EXPECT_NEAR(schedules[0].at(188250), 0.5, 1e-6);
}

TEST(Options, EveryKindReadsItsKeys) {
  Root root;
  EXPECT_TRUE(
      problems(
          "[optimizer]\nkind = \"adamw\"\nlearning_rate = 1\nb2 = 0.95\nmomentum_type = \"bf16\"\n",
          root)
          .empty());
  auto* adamw = dynamic_cast<const optim::AdamwOptions*>(&root.optimizer.method_options());
  ASSERT_NE(adamw, nullptr);
  EXPECT_EQ(adamw->b2, 0.95);
  EXPECT_EQ(adamw->momentum_type, device::DType::bf16);
  Root second;
  EXPECT_TRUE(
      problems("[optimizer]\nkind = \"momentum\"\nlearning_rate = 1\nnesterov = true\n", second)
          .empty());
  EXPECT_TRUE(
      dynamic_cast<const optim::MomentumOptions&>(second.optimizer.method_options()).nesterov);
  Root third;
  EXPECT_TRUE(problems("[optimizer]\nkind = \"sgd\"\nlearning_rate = 1\n", third).empty());
}

TEST(Options, ARuleMayHaveAnOptimizerOfItsOwn) {
  const std::string deck = R"([optimizer]
kind = "adamw"
learning_rate = 1
b1 = 0.8
[[optimizer.rule]]
match = ".*/kernel"
kind = "sgd"
momentum = 0.7
[[optimizer.rule]]
match = ".*"
)";
  Root root;
  EXPECT_EQ(problems(deck, root), std::vector<std::string>{});
  const auto& own = dynamic_cast<const optim::SgdOptions&>(root.optimizer.method_options(0));
  EXPECT_EQ(own.momentum, 0.7);
  const auto policies = optim::resolve_policies(root.optimizer, root.schedules, paths);
  EXPECT_TRUE(policies.problems.empty());
  for (size_t p = 0; p < paths.size(); ++p)
    EXPECT_EQ(policies.parameters[p].rule, paths[p].ends_with("/kernel") ? 0 : -1) << paths[p];
  auto refused = [&](const std::string& from, const std::string& to, const std::string& mention) {
    std::string text = deck;
    text.replace(text.find(from), from.size(), to);
    Root wrong;
    const std::vector<std::string> lines = problems(text, wrong);
    ASSERT_EQ(lines.size(), 1u) << text;
    EXPECT_NE(lines[0].find(mention), std::string::npos) << lines[0];
  };
  refused("momentum = 0.7", "b1 = 0.7", "b1");
  refused("kind = \"sgd\"\nmomentum = 0.7",
          "kind = \"adafactor\"\n[optimizer.trust]\nrule = \"larc\"\n[[optimizer.rule]]\n"
          "match = \"pos\"",
          "adafactor reads gradients before its update");
}

TEST(Options, DeckMistakes) {
  struct {
    const char *text, *mention;
  } cases[] = {
      {"[optimizer]\nkind = \"adafactr\"\nlearning_rate = 1\n", "adafactor"},
      {"[optimizer]\nkind = \"adafactor\"\n", "learning_rate"},
      {"[optimizer]\nlearning_rate = -1\n", "learning_rate"},
      {"[optimizer]\nlearning_rate = 1\nbeta2cap = 0.9\n", "beta2_cap"},
      {"[optimizer]\nlearning_rate = 1\nmomentum_type = \"fp16\"\n", "bf16"},
      {"[optimizer]\nlearning_rate = 1\nrule = [{match = \"a(\"}]\n", "regular expression"},
      {"[optimizer]\nlearning_rate = 1\nrule = [{match = \"/a\"}]\n", "do not begin"},
      {"[optimizer]\nlearning_rate = 1\nrule = [{match = \".*\", decay_scale = -0.5}]\n",
       "decay_scale"},
      {"[optimizer]\nkind = \"adamw\"\nlearning_rate = 1\nb1 = 1.0\n", "b1"},
      {"[optimizer]\nlearning_rate = 1\n[schedule.default]\nkind = \"stair\"\nat_steps = [1, "
       "2]\nmults = [1]\n",
       "2 boundaries"},
      {"[optimizer]\nlearning_rate = 1\n[schedule.default]\nkind = \"cosine\"\nwarmup_percent = "
       "0.1\n",
       "warmup_fraction"},
      {"[optimizer]\nlearning_rate = 1\n[schedule.default]\nkind = \"cosine\"\npower = 2\n",
       "power"},
  };
  for (auto& c : cases) {
    Root root;
    const auto lines = problems(c.text, root);
    ASSERT_FALSE(lines.empty()) << c.text;
    EXPECT_TRUE(std::any_of(lines.begin(), lines.end(),
                            [&](auto& l) { return l.find(c.mention) != l.npos; }))
        << c.text << "gave: " << lines[0];
  }
}

TEST(Options, CompositeScheduleFromTheDeck) {
  Root root;
  EXPECT_EQ(problems(R"(
[optimizer]
learning_rate = 1
[schedule.default]
kind = "composite"
[[schedule.default.part]]
kind = "constant"
warmup_steps = 10
[[schedule.default.part]]
from_fraction = 0.5
kind = "polynomial"
power = 2
)",
                     root),
            std::vector<std::string>{});
  const auto s = optim::make_schedules({"default"}, root.schedules, {200, 1, 1});
  EXPECT_EQ(s[0].at(5), 0.5f);
  EXPECT_EQ(s[0].at(99), 1.0f);
  EXPECT_FLOAT_EQ(s[0].at(150), 0.25f);
}

TEST(Options, DescribesAndDumpsEveryKey) {
  Root root;
  const std::string text = config::describe([&](config::Table& t) { root.bind(t); }, "optimizer");
  for (const char* key : {"beta2_cap", "eps_root", "nesterov", "clip_norm", "decay_scale"})
    EXPECT_NE(text.find(key), text.npos) << key;
  EXPECT_NE(config::describe([&](config::Table& t) { root.bind(t); }, "schedule").find("timescale"),
            text.npos);
  Root deck_root;
  const std::string source =
      "[optimizer]\nkind = \"momentum\"\nlearning_rate = 0.5\n[schedule.default]\nkind = "
      "\"rsqrt\"\n";
  config::Deck deck(config::DeckSource{"deck.toml", source, {}}, deck_root);
  Root again;
  EXPECT_EQ(problems(deck.resolved(), again), std::vector<std::string>{}) << deck.resolved();
  EXPECT_EQ(again.optimizer.kind, "momentum");
}

TEST(Options, FirstRuleDecidesEverything) {
  optim::OptimizerOptions o;
  o.rules.resize(4);
  o.rules[0].match = "encoder/.*/bias";
  o.rules[0].lr_scale = 3;
  o.rules[1].match = "encoder/.*";
  o.rules[1].frozen = true;
  o.rules[1].schedule = "default";
  o.rules[2].match = "decoder/.*";
  o.rules[2].schedule = "slow";
  o.rules[2].decay_scale = 0.5;
  o.rules[3].match = ".*";
  optim::ScheduleTables tables;
  tables["slow"].kind = "linear";
  const auto r = optim::resolve_policies(o, tables, paths);
  EXPECT_TRUE(r.problems.empty());
  EXPECT_EQ(r.schedules, (std::vector<std::string>{"default", "slow"}));
  EXPECT_TRUE(r.parameters[0].frozen);
  EXPECT_FALSE(r.parameters[1].frozen);
  EXPECT_EQ(r.parameters[1].lr_scale, 3);
  EXPECT_EQ(r.parameters[1].decay_scale, 0);
  EXPECT_EQ(r.parameters[2].schedule, 1);
  EXPECT_EQ(r.parameters[2].decay_scale, 0.5);
  EXPECT_EQ(r.parameters[3].lr_scale, 1);
  EXPECT_EQ(r.parameters[4].decay_scale, 0) << "a top-level kernel is not .*/kernel";
}

// A trunk of a stem and two blocks, and a head.
TEST(Options, LayerDecayFallsTowardsTheImages) {
  optim::OptimizerOptions o;
  o.layer_decay = 0.5;
  o.rules.resize(1);
  o.rules[0].lr_scale = 3;
  std::vector<shard::Parameter> parameters(4);
  for (int i = 0; i < 4; ++i) {
    parameters[size_t(i)].path = fmt::format("p{}/kernel", i);
    parameters[size_t(i)].shape = {2, 2};
    parameters[size_t(i)].level = i % 3;
  }
  parameters[3].level = -1;
  const auto r = optim::resolve_policies(o, {}, parameters);
  EXPECT_TRUE(r.problems.empty());
  std::vector<double> scales;
  for (const optim::ParameterPolicy& p : r.parameters) scales.push_back(p.lr_scale);
  EXPECT_EQ(scales, (std::vector<double>{0.375, 0.75, 1.5, 3}));
}

TEST(Options, ProblemsOfRules) {
  optim::OptimizerOptions o;
  o.rules.resize(2);
  o.rules[0].match = "encodr/.*";
  o.rules[1].match = "encoder/.*";
  o.rules[1].schedule = "slwo";
  optim::ScheduleTables tables;
  tables["slow"];
  tables["default"];
  const auto r = optim::resolve_policies(o, tables, paths).problems;
  EXPECT_TRUE(mentions(r, "optimizer.rule", "decoder/EmbedTargets/embedding"));
  EXPECT_TRUE(mentions(r, "optimizer.rule.0.match", "matches no parameter"));
  EXPECT_TRUE(mentions(r, "optimizer.rule.1.schedule", "slow"));
  EXPECT_TRUE(mentions(r, "schedule.slow", "no [[optimizer.rule]] names"));
  EXPECT_EQ(r.size(), 4u);
}

TEST(Options, RowsOfUnitLengthAreNotFrozenForEver) {
  optim::OptimizerOptions o;
  o.rules.resize(1);
  o.rules[0].match = ".*";
  std::vector<shard::Parameter> one(1);
  one[0].path = "head/prototypes0.weight";
  one[0].unit_rows = true;
  EXPECT_TRUE(optim::resolve_policies(o, {}, one).problems.empty());
  o.rules[0].frozen = true;
  EXPECT_TRUE(mentions(optim::resolve_policies(o, {}, one).problems, "optimizer.rule",
                       "head/prototypes0.weight"));
}

std::vector<shard::Parameter> resnet_parameters() {
  std::vector<shard::Parameter> out;
  auto add = [&](const std::string& path, std::vector<int64_t> shape) {
    out.emplace_back().path = path;
    out.back().shape = std::move(shape);
  };
  add("trunk/conv1.weight", {8, 3, 7, 7});
  add("trunk/bn1.weight", {8});
  add("trunk/bn1.bias", {8});
  add("trunk/layer1.0.downsample.1.weight", {8});
  add("head/clf.0.weight", {4, 8});
  add("head/clf.0.bias", {4});
  add("head/prototypes0.weight_g", {4, 1});
  add("encoder/LayerNorm_0/scale", {8});
  add("encoder/LayerNorm_0/bias", {8});
  add("encoder/attention/query/kernel", {8, 2, 4});
  add("encoder/attention/query/bias", {2, 4});
  add("pos_embedding", {1, 9, 8});
  return out;
}

TEST(Options, RolesOfParameters) {
  using enum optim::ParameterRole;
  EXPECT_EQ(optim::roles_of(resnet_parameters()),
            (std::vector{weight, norm, norm, norm, weight, bias, weight, norm, norm, weight, bias,
                         weight}));
  const auto policies = optim::resolve_policies({}, {}, resnet_parameters());
  const std::vector<double> decay = {1, 0, 0, 0, 1, 0, 1, 0, 0, 1, 0, 0};
  for (size_t p = 0; p < decay.size(); ++p)
    EXPECT_EQ(policies.parameters[p].decay_scale, decay[p]) << p;
}

TEST(Options, RulesOfRoles) {
  Root root;
  EXPECT_EQ(problems(R"(
[optimizer]
kind = "sgd"
learning_rate = 1
weight_decay = 1
momentum = 0.9
nesterov = true
decay_form = "gradient"
decay_schedule = "decay"
clip_norm = 1
clip_type = "inf"
drop_norm = 100
[optimizer.trust]
rule = "larc"
clip = true
[[optimizer.rule]]
match = "head/.*"
of = ["bias"]
decay_scale = 0
frozen_until_epochs = 2
trust = false
[[optimizer.rule]]
of = ["norm", "bias"]
decay_scale = 0
[[optimizer.rule]]
match = ".*"
decay_scale = 1
[schedule.decay]
kind = "phases"
phase = [{kind = "cosine", start = 0.04, end = 0.4}]
)",
                     root),
            std::vector<std::string>{});
  const auto r =
      optim::resolve_policies(root.optimizer, root.schedules, resnet_parameters(), {1000, 10, 500});
  EXPECT_TRUE(r.problems.empty()) << r.problems[0].text;
  EXPECT_EQ(r.schedules, (std::vector<std::string>{"default", "decay"}));
  for (size_t p = 0; p < r.parameters.size(); ++p) {
    const bool head_bias = p == 5, decays = p == 0 || p == 4 || p == 6 || p == 9 || p == 11;
    EXPECT_EQ(r.parameters[p].decay_scale, decays) << p;
    EXPECT_EQ(r.parameters[p].frozen_steps, head_bias ? 100 : 0) << p;
    EXPECT_EQ(r.parameters[p].trust, !head_bias) << p;
    EXPECT_EQ(r.parameters[p].decay_schedule, decays ? 1 : -1) << p;
  }
}

TEST(Options, MistakesOfPublishedKeys) {
  const std::string start = "[optimizer]\nlearning_rate = 1\n";
  struct {
    std::string text, mention;
  } cases[] = {
      {"rule = [{decay_scale = 1}]\n", "give match, of, or both"},
      {"rule = [{of = [\"biases\"]}]\n", "bias"},
      {"rule = [{match = \".*\", frozen = true, frozen_until_steps = 3}]\n", "frozen_until"},
      {"rule = [{match = \".*\", trust = false}]\n", "optimizer.trust"},
      {"kind = \"sgd\"\nnesterov = true\n", "needs momentum"},
      {"kind = \"sgd\"\nweight_decay = 1\n[optimizer.trust]\n", "decay_form"},
      {"kind = \"adafactor\"\n[optimizer.trust]\n", "reads gradients before"},
      {"kind = \"adafactor\"\ndecay_form = \"gradient\"\n", "reads gradients before"},
      {"kind = \"sgd\"\n[optimizer.trust]\nrule = \"lars\"\nclip = true\n",
       "applies only to rule = \"larc\""},
      {"[schedule.default]\nkind = \"phases\"\nphase = [{kind = \"multistep\", values = [1, 2], "
       "num_epochs = 9, milestones = [1, 2]}]\n",
       "need 1 milestones"},
      {"[schedule.default]\nkind = \"phases\"\nphase = [{kind = \"cosin\"}]\n", "cosine"},
      {"[schedule.default]\nkind = \"phases\"\nphase = [{kind = \"cosine\", strat = 1}]\n",
       "start"},
  };
  for (const auto& c : cases) {
    Root root;
    const auto lines = problems(start + c.text, root);
    EXPECT_TRUE(std::any_of(lines.begin(), lines.end(),
                            [&](auto& l) { return l.find(c.mention) != l.npos; }))
        << c.text << "gave: " << (lines.empty() ? "nothing" : lines[0]);
  }
  optim::OptimizerOptions o;
  o.decay_schedule = "decya";
  o.rules = {{.match = ".*", .of = {"bias"}}, {.match = ".*"}};
  const auto r = optim::resolve_policies(o, {{"decay", {}}}, std::vector<std::string>{"a/kernel"});
  EXPECT_TRUE(mentions(r.problems, "optimizer.decay_schedule", "decay"));
  EXPECT_TRUE(mentions(r.problems, "optimizer.rule.0.match", "of bias matches no parameter"));
}

TEST(Options, ABrokenPatternIsReportedOnce) {
  optim::OptimizerOptions o;
  o.rules.resize(2);
  o.rules[0].match = "a(";
  o.rules[1].match = ".*";
  EXPECT_TRUE(optim::resolve_policies(o, {}, paths).problems.empty())
      << "the deck's reader has reported this problem";
}

TEST(Options, WhichTensorsAreFactored) {
  auto f = [](std::vector<int64_t> shape) { return optim::factor(shape, 32); };
  EXPECT_FALSE(f({64}).factored);
  EXPECT_FALSE(f({16, 16, 3, 768}).factored);  // second largest is 16
  EXPECT_FALSE(f({12, 31}).factored);
  const auto heads = f({768, 12, 64});
  EXPECT_EQ(heads.v_row, (std::vector<int64_t>{12, 64}));
  EXPECT_EQ(heads.v_col, (std::vector<int64_t>{768, 12}));
  const auto out = f({12, 64, 768});
  EXPECT_EQ(out.v_row, (std::vector<int64_t>{12, 64}));
  EXPECT_EQ(out.v_col, (std::vector<int64_t>{12, 768}));
  EXPECT_EQ(f({32001, 768}).v_row, (std::vector<int64_t>{768}));
  EXPECT_EQ(f({768, 32000}).v_col, (std::vector<int64_t>{32000}));
  EXPECT_EQ(f({1, 196, 768}).v_row, (std::vector<int64_t>{1, 196}));
  EXPECT_FALSE(f({48, 48}).shape.x_is_largest) << "of equal dimensions the last counts as larger";
}

TEST(Options, AdafactorsBeta2) {
  EXPECT_EQ(optim::adafactor_beta2(1, 0, 0.8, 0.999), 0.0f);
  EXPECT_NEAR(optim::adafactor_beta2(2, 0, 0.8, 0.999), 0.4256508, 1e-7);
  EXPECT_LT(optim::adafactor_beta2(5600, 0, 0.8, 0.999), 0.999f);
  EXPECT_EQ(optim::adafactor_beta2(5700, 0, 0.8, 0.999), 0.999f);
  EXPECT_EQ(optim::adafactor_beta2(102, 100, 0.8, 0.999), optim::adafactor_beta2(2, 0, 0.8, 0.999));
}

// At late steps a small mistake in the base of a power grows. The values are NumPy's float32, with
// powers through double.
TEST(Options, BetasFarOn) {
  const std::pair<int64_t, float> beta2[] = {{1000, 0x1.fdf632p-1f},
                                             {5623, 0x1.ff7cecp-1f},
                                             {5624, 0x1.ff7cf0p-1f},
                                             {1000000, 0x1.fffdecp-1f},
                                             {100000000, 0x1.fffff2p-1f}};
  for (auto [step, value] : beta2) {
    EXPECT_EQ(optim::adafactor_beta2(step, 0, 0.8, 1), value) << step;
    EXPECT_EQ(optim::adafactor_beta2(step, 0, 0.8, 0.999), std::min(value, 0.999f)) << step;
    EXPECT_EQ(optim::adafactor_beta2(step + 700, 700, 0.8, 1), value) << step;
  }
}

TEST(Options, BiasCorrectionsFarOn) {
  struct Case {
    double b;
    int64_t step;
    float correction;
  };
  const Case cases[] = {{0.9, 1, 0x1.9999ap-4f},
                        {0.9, 2, 0x1.851ecp-3f},
                        {0.9, 10, 0x1.4d7a08p-1f},
                        {0.9, 1000, 1},
                        {0.95, 10, 0x1.9ae4b8p-2f},
                        {0.98, 10, 0x1.76a27p-3f},
                        {0.99, 1000, 0x1.fffa58p-1f},
                        {0.999, 1, 0x1.0624p-10f},
                        {0.999, 10, 0x1.46348p-7f},
                        {0.999, 1000, 0x1.43bccep-1f},
                        {0.999, 10000, 0x1.fffa14p-1f},
                        {0.999, 100000, 1},
                        {0.9999, 10, 0x1.061p-10f},
                        {0.9999, 1000, 0x1.85ddbp-4f},
                        {0.9999, 10000, 0x1.43afb8p-1f},
                        {0.9999, 100000, 0x1.fffa1p-1f},
                        {0, 1, 1},
                        {0, 7, 1}};
  for (const Case& c : cases)
    EXPECT_EQ(optim::bias_correction(c.b, c.step), c.correction) << c.b << " at " << c.step;
}

}  // namespace
