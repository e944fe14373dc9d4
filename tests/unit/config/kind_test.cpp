// SPDX-License-Identifier: Apache-2.0
// Tests registered variants.
#include "recipe.hpp"

namespace {

using recipe::at;
using recipe::good;
using recipe::parse;
using recipe::problems;
using recipe::with_line;
using Lines = std::vector<std::string>;

TEST(Kind, MakesAndFillsTheChosenOptions) {
  auto r = parse(with_line(7, "kind = 'adafactor'\nbeta2_cap = 0.5"));
  EXPECT_EQ(r->problems(), Lines{});
  auto* adafactor = dynamic_cast<recipe::Adafactor*>(r->root.optimizer.options.get());
  ASSERT_NE(adafactor, nullptr);
  EXPECT_EQ(adafactor->beta2_cap, 0.5);
  EXPECT_EQ(adafactor->eps, 1e-30);

  auto w = parse(with_line(7, "kind = 'adamw'\nbeta2 = 0.25\npreconditioner.width = 24"));
  EXPECT_EQ(w->problems(), Lines{});
  auto* adamw = dynamic_cast<recipe::AdamW*>(w->root.optimizer.options.get());
  ASSERT_NE(adamw, nullptr);
  EXPECT_EQ(adamw->beta2, 0.25);
  EXPECT_EQ(adamw->preconditioner.width, 24);
}

TEST(Kind, WithoutOptions) {
  auto r = parse(with_line(7, "kind = 'sgd'"));
  EXPECT_EQ(r->problems(), Lines{});
  EXPECT_EQ(r->root.optimizer.options, nullptr);
}

TEST(Kind, DefaultKind) {
  auto r = parse(std::string(good) + "[schedule.default]\nwarmup_steps = 5\n");
  EXPECT_EQ(r->problems(), Lines{});
  auto* cosine = dynamic_cast<recipe::Cosine*>(r->root.schedule.at("default").options.get());
  ASSERT_NE(cosine, nullptr);
  EXPECT_EQ(cosine->warmup.value, 5);
}

TEST(Kind, KeysOfAnotherKindAreNamedAsSuch) {
  EXPECT_EQ(
      problems(with_line(7, "kind = 'adamw'\nbeta2_cap = 0.5")),
      Lines{at(
          8,
          R"(optimizer.beta2_cap: key beta2_cap belongs to kind = "adafactor", this table has kind = "adamw")")});
  EXPECT_EQ(
      problems(with_line(7, "kind = 'sgd'\neps = 1\npreconditioner.width = 5")),
      (Lines{
          at(8,
             R"(optimizer.eps: key eps belongs to kind = "adafactor", "adamw", this table has kind = "sgd")"),
          at(9,
             "optimizer.preconditioner: key preconditioner belongs to kind = \"adamw\", this table "
             "has kind = "
             "\"sgd\"")}));
  // This also holds for a default kind, and for a duration.
  EXPECT_EQ(
      problems(std::string(good) +
               "[schedule.default]\nkind = 'composite'\nwarmup_fraction = 0.1\n"),
      Lines{at(
          18,
          R"(schedule.default.warmup_fraction: key warmup_fraction belongs to kind = "cosine", this table has )"
          R"(kind = "composite")")});
  EXPECT_EQ(
      problems(std::string(good) + "[[schedule.default.part]]\n"),
      Lines{at(
          16,
          R"(schedule.default.part: key part belongs to kind = "composite", this table has kind = "cosine")")});
}

TEST(Kind, AnUnknownKindIsOneProblem) {
  // Keys of some kind are not judged, all other keys are.
  EXPECT_EQ(
      problems(with_line(7, "kind = 'adafator'\nbeta2_cap = 0.5\nbeta2 = 'x'\nbta2_cap = 1")),
      (Lines{
          R"(run.toml:7: optimizer.kind: "adafator" is not accepted; did you mean "adafactor"? Accepted: "adafactor", )"
          R"("adamw", "sgd")",
          "run.toml:10: optimizer.bta2_cap: unknown key; did you mean optimizer.beta2_cap?"}));
  EXPECT_EQ(
      problems(with_line(7, "kind = 5\nbeta2_cap = 0.5")),
      Lines{R"(run.toml:7: optimizer.kind: expected a string, found the integer 5; write "5")"});
  EXPECT_EQ(problems(with_line(7, "beta2_cap = 0.5")),
            Lines{"run.toml:6: optimizer.kind: missing; add kind = ... (a "
                  "string, one of adafactor, adamw, sgd) to [optimizer]: "
                  "which optimizer"});
}

TEST(Kind, SlipInAKeyOfTheChosenKind) {
  EXPECT_EQ(problems(with_line(7, "kind = 'adafactor'\nmomentm_type = 'f32'")),
            Lines{"run.toml:8: optimizer.momentm_type: unknown key; did you mean momentum_type?"});
}

TEST(Kind, ChangedByAnOverride) {
  EXPECT_EQ(
      problems(with_line(7, "kind = 'adafactor'\nbeta2_cap = 0.5"), {"optimizer.kind=adamw"}).at(0),
      at(8,
         R"(optimizer.beta2_cap: key beta2_cap belongs to kind = "adafactor", this table has kind = "adamw")"));
  EXPECT_EQ(
      problems(good, {"optimizer.beta2=0.5"}),
      Lines{
          R"(--set optimizer.beta2=0.5: key beta2 belongs to kind = "adamw", this table has kind = "adafactor")"});
}

TEST(Kind, WithinItself) {
  auto r = parse(std::string(good) +
                 "[schedule.s]\nkind = 'composite'\npart = [{ warmup_steps = 3 }, { kind = "
                 "'composite', part = [{ scle "
                 "= 2 }] }]\n");
  EXPECT_EQ(
      r->problems(),
      Lines{"run.toml:18: schedule.s.part[1].part[0].scle: unknown key; did you mean scale?"});
  auto* composite = dynamic_cast<recipe::Composite*>(r->root.schedule.at("s").options.get());
  ASSERT_NE(composite, nullptr);
  ASSERT_EQ(composite->parts.size(), 2u);
  EXPECT_EQ(dynamic_cast<recipe::Cosine*>(composite->parts[0].options.get())->warmup.value, 3);
}

TEST(Kind, DeepWithinItself) {
  EXPECT_EQ(
      problems(
          std::string(good) +
          "[schedule.s]\nkind = 'composite'\n"
          "part = [{ kind = 'composite', part = [{ kind = 'composite', warmup_steps = 1 }] }]\n"),
      Lines{at(
          18,
          "schedule.s.part[0].part[0].warmup_steps: key warmup_steps belongs to kind = \"cosine\", "
          "this table has kind = \"composite\"")});
}

TEST(Kind, LeftOutAfterASyntaxErrorIsNotTheDefault) {
  EXPECT_EQ(
      problems(std::string(good) + "[schedule.default]\nkind = composite\npart = []\n").size(), 1u);
  EXPECT_EQ(problems(with_line(7, "kind = adamw\nbeta2 = 0.5")).size(), 1u);

  struct Small : config::Table::Variant {
    int64_t size = 1;
    void bind(config::Table& t) override { t.key("size", size, "").max(10); }
  };
  struct Root {
    std::string kind = "small";
    std::shared_ptr<config::Table::Variant> options;
    void bind(config::Table& t) {
      auto make = [](const std::string&) { return std::make_shared<Small>(); };
      t.kind("kind", kind, options, {"small", "other"}, make, "");
    }
  } root;
  config::Deck deck({"run.toml", "kind = other\nsize = 1000\n", {}}, root);
  EXPECT_EQ(deck.problems().lines.size(), 1u);  // 1000 may be right for the intended kind
}

// ---- contradictions in the rows are defects of the program

std::string defect(std::function<void(config::Table&)> bind) {
  try {
    config::Deck deck({"run.toml", "", {}}, bind);
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::Exit::internal);
    return e.what();
  }
  return "";
}

TEST(Rows, TwoRowsForOneKey) {
  int64_t a = 0;
  recipe::Duration d;
  EXPECT_NE(defect([&](config::Table& t) {
              t.key("a", a, "");
              t.key("a", a, "");
            }).find("two rows for key a"),
            std::string::npos);
  EXPECT_NE(defect([&](config::Table& t) {
              t.duration("a", d, "");
              t.key("a_steps", a, "");
            }).find("two rows for key a_steps"),
            std::string::npos);
  std::string kind = "x";
  std::shared_ptr<config::Table::Variant> options;
  struct Clash : config::Table::Variant {
    int64_t a = 0;
    void bind(config::Table& t) override { t.key("a", a, ""); }
  };
  auto make = [](const std::string&) { return std::make_shared<Clash>(); };
  auto bind_kind = [&](config::Table& t) { t.kind("kind", kind, options, {"x", "y"}, make, ""); };
  EXPECT_EQ(defect(bind_kind), "");
  EXPECT_NE(defect([&](config::Table& t) {
              t.key("a", a, "");
              bind_kind(t);
            }).find("two rows for key a"),
            std::string::npos);
  EXPECT_NE(defect([&](config::Table& t) {
              bind_kind(t);
              t.key("a", a, "");
            }).find("two rows for key a"),
            std::string::npos);
}

TEST(Rows, ADefaultThatItsOwnRowRefuses) {
  int64_t a = 0;
  std::string s = "x";
  EXPECT_NE(defect([&](config::Table& t) {
              t.key("a", a, "").min(1);
            }).find("the default of a: 0 is out of range: must be >= 1"),
            std::string::npos);
  EXPECT_NE(defect([&](config::Table& t) {
              t.key("s", s, "").one_of({"y"});
            }).find("the default of s: \"x\" is not accepted"),
            std::string::npos);
  EXPECT_EQ(defect([&](config::Table& t) { t.key("a", a, "").min(1).required(); }), "");
}

TEST(Rows, ConstraintsThatDoNotFitTheType) {
  std::string s;
  int64_t a = 0;
  EXPECT_NE(defect([&](config::Table& t) { t.key("s", s, "").min(1); }).find("s takes no bounds"),
            std::string::npos);
  EXPECT_NE(
      defect([&](config::Table& t) { t.key("a", a, "").one_of({"x"}); }).find("a takes no names"),
      std::string::npos);
  EXPECT_NE(defect([&](config::Table& t) { t.key("a.b", a, ""); }).find("key name \"a.b\""),
            std::string::npos);
}

}  // namespace
