// SPDX-License-Identifier: Apache-2.0
// Checks the weighted sum of losses that a deck names against these losses alone, and its keys.
#include "config/table.hpp"
#include "embedding_loss_rig.hpp"
#include "models/model.hpp"

namespace {
namespace combined_loss_test {

using namespace embedding_rig;

struct Keys {
  std::vector<models::LossTermOptions> losses;
  void bind(config::Table& t) { t.list("loss", losses, ""); }
};

// The terms of a deck's [[loss]] tables.
std::vector<models::LossTermOptions> terms_of(const std::string& text) {
  Keys keys;
  const config::Deck deck({.path = "deck", .text = text, .overrides = {}}, keys);
  deck.throw_if_any();
  return keys.losses;
}

Subject subject(const std::string& text) {
  return {.name = text,
          .make = [terms = terms_of(text)](auto&) { return models::make_combined_loss(terms); },
          .in = {.views = 2, .widths = {5}, .outputs = {numbers(kExamples * 2 * 5, "combined")}},
          .reference = {}};
}

constexpr char kSimclr[] = "[[loss]]\nkind = 'simclr'\ntemperature = 0.25\n";
constexpr char kBarlow[] = "[[loss]]\nkind = 'barlow_twins'\nlambda = 0.25\nscale = 0.5\n";

TEST(CombinedLoss, OneLossOfWeightOneIsThatLoss) {
  Subject alone = subject(kSimclr);
  const Outcome got = run_loss(alone, {2, 2});
  alone.make = [](auto&) {
    return models::make_simclr_loss({.temperature = 0.25, .negative_group = 0});
  };
  const Outcome want = run_loss(alone, {2, 2});
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.gradients, want.gradients);
  EXPECT_EQ(got.terms, std::vector<Floats>{want.losses});
}

TEST(CombinedLoss, IsTheWeightedSum) {
  const Outcome simclr = run_loss(subject(kSimclr), {}), barlow = run_loss(subject(kBarlow), {});
  const Subject both =
      subject(std::string(kSimclr) + "weight = 0.75\n" + kBarlow + "weight = 2\nname = 'apart'\n");
  const Outcome got = run_loss(both, {});
  EXPECT_EQ(got.terms, (std::vector<Floats>{simclr.losses, barlow.losses}));
  for (size_t i = 0; i < got.losses.size(); ++i)
    EXPECT_FLOAT_EQ(got.losses[i], 0.75F * simclr.losses[i] + 2 * barlow.losses[i]);
  for (size_t i = 0; i < got.gradients[0].size(); ++i)
    EXPECT_NEAR(got.gradients[0][i],
                0.75 * double(simclr.gradients[0][i]) + 2 * double(barlow.gradients[0][i]), 1e-7);
  const Outcome sliced = run_loss(both, {1, 4});
  for (const Cuts& cuts : {Cuts{2, 2}, Cuts{4, 1}}) {
    const Outcome again = run_loss(both, cuts);
    EXPECT_EQ(again.losses, sliced.losses);
    EXPECT_EQ(again.gradients, sliced.gradients);
    EXPECT_EQ(again.terms, sliced.terms);
  }
}

TEST(CombinedLoss, MeasuresHaveTheNamesOfTheDeck) {
  models::ParameterList list;
  const auto loss = subject(std::string(kSimclr) + kBarlow + "name = 'apart'\n").make(list);
  std::vector<std::string> names;
  for (const models::LossTerm& term : loss->terms()) names.push_back(term.name);
  EXPECT_EQ(names, (std::vector<std::string>{"simclr", "apart"}));
}

struct Model {
  models::ModelOptions model;
  void bind(config::Table& t) { t.table("model", model, ""); }
};

// Returns the problems of a model of these views and losses.
std::string problems(const std::string& views, const std::string& losses) {
  Model keys;
  const config::Deck deck(
      {.path = "deck",
       .text = "[model]\nkind = 'combined'\nviews = [" + views + "]\nimage_size = [16]\n" + losses +
               "[model.trunk]\nkind = 'resnet'\n[[model.head]]\nkind = 'mlp'\nlayers = [8]\n",
       .overrides = {}},
      keys);
  try {
    deck.throw_if_any();
  } catch (const base::Error& e) {
    return e.what();
  }
  return "";
}

TEST(CombinedLoss, KeysAreChecked) {
  const std::string simclr = "[[model.loss]]\nkind = 'simclr'\n",
                    barlow = "[[model.loss]]\nkind = 'barlow_twins'\n";
  EXPECT_EQ(problems("2", simclr + barlow), "");
  EXPECT_EQ(problems("2", simclr + simclr + "name = 'cold'\ntemperature = 0.05\n"), "");
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), text.npos) << text;
  };
  has(problems("2", ""), "add a [[model.loss]] table");
  has(problems("3", barlow), "make 3 of an image, but the loss \"barlow_twins\" compares 2");
  has(problems("1", simclr), "make 1 of an image, but the loss \"simclr\" compares 2 or more");
  has(problems("2", simclr + simclr), "two measures are named \"simclr\"");
  has(problems("2", simclr + "name = 'a b'\n"), "may have only characters a to z");
  has(problems("2", "[[model.loss]]\nkind = 'moco'\n"), "barlow_twins");
  has(problems("2", simclr + "weight = -1\n"), "weight");
}

}  // namespace combined_loss_test
}  // namespace
