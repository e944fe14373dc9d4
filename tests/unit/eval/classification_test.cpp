// SPDX-License-Identifier: Apache-2.0
// Tests the classification evaluator with made-up ranks and losses: the counted examples, every k,
// and every number of ranks.
#include <gtest/gtest.h>

#include "cut_rig.hpp"
#include "eval/classes/class_pass.hpp"
#include "rig.hpp"

namespace {

// The made-up model gives these values for example e. The losses add up exactly.
double loss_of(int64_t e) { return 1 + 0.25 * double(e % 9); }
double rank_of(int64_t e) { return double(e * e % 11); }

class MadeUpClasses : public eval::ClassPass {
 public:
  explicit MadeUpClasses(int64_t examples) : examples_(examples) {}
  std::string name() const override { return "classify"; }
  std::vector<models::InputSpec> inputs() const override { return {}; }
  int64_t classes() const override { return 12; }
  kernels::ClassLoss loss() const override { return kernels::ClassLoss::softmax; }
  void prepare(const models::HostBatch& batch, const models::Inputs&) const override {
    batch_ = batch;
  }
  void run(nn::Context&, const models::Inputs&, const eval::ClassNumbers& to) override {
    ++calls;
    for (int64_t i = 0; i < batch_.examples; ++i) {
      const int64_t e = batch_.features.at("label").i32()[i] - 1;
      const bool padding = batch_.first_position + i >= examples_;
      EXPECT_EQ(e, padding ? -1 : batch_.first_position + i);
      to.loss[i] = padding ? 1e9 : loss_of(e);
      to.rank[i] = padding ? 0 : rank_of(e);
    }
  }
  int64_t calls = 0;

 private:
  int64_t examples_;
  mutable models::HostBatch batch_;
};

std::vector<eval::Result> evaluate(int64_t examples, int64_t batch, int size,
                                   const std::string& keys = "", int64_t interrupt_after = -1) {
  const data::Dataset set = rig::numbers("label", examples);
  const std::unique_ptr<eval::Evaluator> evaluator =
      eval::make_evaluator(rig::options("classification", keys));
  rig::Ranks ranks(size);
  std::vector<eval::Result> out(static_cast<size_t>(size));
  ranks.run_all([&](int rank, bool) {
    MadeUpClasses pass(examples);
    out[size_t(rank)] =
        evaluator->run({.world = ranks,
                        .dataset = set,
                        .loader = {},
                        .batch = batch,
                        .pass = &pass,
                        .forward = rig::runs_of(pass),
                        .interrupted = [&] { return pass.calls == interrupt_after; }});
  });
  return out;
}

using Values = std::vector<std::pair<std::string, double>>;

TEST(Classification, IsExactForEverySetSizeBatchAndNumberOfRanks) {
  for (int64_t examples : {1, 2, 3, 5, 7, 40}) {
    double loss = 0, top1 = 0, top3 = 0;
    for (int64_t e = 0; e < examples; ++e) {
      loss += loss_of(e);
      top1 += rank_of(e) < 1;
      top3 += rank_of(e) < 3;
    }
    const double n = double(examples);
    const Values want = {{"top3", top3 / n}, {"top1", top1 / n}, {"loss", loss / n}};
    for (int64_t batch : {1, 4, 32})
      for (int size : {1, 2, 3, 4})
        for (const eval::Result& r : evaluate(examples, batch, size, "k = [3, 1]")) {
          EXPECT_EQ(r.values, want)
              << examples << " examples, batch " << batch << ", " << size << " ranks";
          EXPECT_EQ(r.examples, examples);
          EXPECT_EQ(r.counted, "images");
        }
  }
}

TEST(Classification, CutsChangeNothing) {
  rig::expect_cuts_change_nothing(rig::options("classification", "k = [1, 4]"),
                                  rig::numbers("label", 29),
                                  [] { return std::make_unique<MadeUpClasses>(29); });
}

TEST(Classification, ValuesHaveTheDeclaredNames) {
  for (const char* keys : {"", "k = [2, 10, 1]"}) {
    std::vector<std::string> names, declared;
    const std::vector<eval::Result> results = evaluate(5, 2, 1, keys);
    for (const auto& [name, value] : results[0].values) names.push_back(name);
    for (const eval::Metric& m : eval::metrics_of(rig::options("classification", keys)))
      declared.push_back(m.name);
    EXPECT_EQ(names, declared);
  }
}

TEST(Classification, RefusesKThatMeansNothing) {
  for (const auto& [keys, part] :
       {std::pair{"k = []", "names no number"}, {"k = [1, 1]", "twice"}, {"k = [0]", "1"}}) {
    rig::Root root;
    config::Deck deck(
        config::DeckSource{
            "deck.toml",
            fmt::format("[eval]\nkind = \"classification\"\ndata = \"val\"\nevery_steps = 1\n{}\n",
                        keys),
            {}},
        root);
    ASSERT_FALSE(deck.problems().lines.empty()) << keys;
    EXPECT_NE(fmt::format("{}", fmt::join(deck.problems().lines, " ")).find(part),
              std::string::npos);
  }
}

TEST(Classification, AnInterruptedEvaluationHasNoValue) {
  for (const eval::Result& r : evaluate(40, 6, 2, "", 1)) {
    EXPECT_TRUE(r.interrupted);
    EXPECT_TRUE(r.values.empty());
  }
}

}  // namespace
