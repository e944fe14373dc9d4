// SPDX-License-Identifier: Apache-2.0
// Tests the evaluator of several probes with made-up heads: exact numbers for every set size, batch
// and number of ranks, chosen heads, and what is refused, also by the evaluator classification.
#include <gtest/gtest.h>

#include "cut_rig.hpp"
#include "eval/classes/class_pass.hpp"
#include "rig.hpp"

namespace {

const std::vector<std::string> kHeads = {"low", "mid", "high"};

// The made-up heads give these values for example e. The losses add up exactly.
double loss_of(int64_t head, int64_t e) { return double(head) + 0.25 * double(e % 9); }
double rank_of(int64_t head, int64_t e) { return double((e * e + head) % 7); }

// A pass of the heads high and low, in this order.
class MadeUpHeads : public eval::ClassPass {
 public:
  explicit MadeUpHeads(int64_t examples) : examples_(examples) {}
  std::string name() const override { return "classify"; }
  int64_t classes() const override { return 7; }
  kernels::ClassLoss loss() const override { return kernels::ClassLoss::softmax; }
  std::vector<models::InputSpec> inputs() const override { return {}; }
  void prepare(const models::HostBatch& batch, const models::Inputs&) const override {
    batch_ = batch;
  }
  void run(nn::Context&, const models::Inputs&, const eval::ClassNumbers& to) override {
    ++calls;
    const int64_t n = batch_.examples;
    for (int64_t h : {0, 1})
      for (int64_t i = 0; i < n; ++i) {
        const int64_t e = batch_.features.at("label").i32()[i] - 1;
        const bool padding = batch_.first_position + i >= examples_;
        EXPECT_EQ(e, padding ? -1 : batch_.first_position + i);
        to.loss[h * n + i] = padding ? 1e9 : loss_of(2 - 2 * h, e);
        to.rank[h * n + i] = padding ? 0 : rank_of(2 - 2 * h, e);
      }
  }
  int64_t calls = 0;

 private:
  int64_t examples_;
  mutable models::HostBatch batch_;
};

constexpr const char* kKeys = "probes = [\"high\", \"low\"]\nk = [3, 1]";

std::vector<eval::Result> evaluate(int64_t examples, int64_t batch, int size,
                                   int64_t interrupt_after = -1) {
  const data::Dataset set = rig::numbers("label", examples);
  const std::unique_ptr<eval::Evaluator> evaluator =
      eval::make_evaluator(rig::options("probes", kKeys));
  rig::Ranks ranks(size);
  std::vector<eval::Result> out(static_cast<size_t>(size));
  ranks.run_all([&](int rank, bool) {
    MadeUpHeads pass(examples);
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

TEST(ProbesEvaluator, IsExactForEverySetSizeBatchAndNumberOfRanks) {
  for (int64_t examples : {1, 2, 5, 7, 40}) {
    std::vector<std::pair<std::string, double>> want;
    for (int64_t head : {2, 0}) {
      double loss = 0, top1 = 0, top3 = 0;
      for (int64_t e = 0; e < examples; ++e) {
        loss += loss_of(head, e);
        top1 += rank_of(head, e) < 1;
        top3 += rank_of(head, e) < 3;
      }
      const double n = double(examples);
      const std::string& name = kHeads[size_t(head)];
      want.insert(
          want.end(),
          {{name + "_top3", top3 / n}, {name + "_top1", top1 / n}, {name + "_loss", loss / n}});
    }
    for (int64_t batch : {1, 4, 32})
      for (int size : {1, 2, 3, 4})
        for (const eval::Result& r : evaluate(examples, batch, size)) {
          EXPECT_EQ(r.values, want)
              << examples << " examples, batch " << batch << ", " << size << " ranks";
          EXPECT_EQ(r.examples, examples);
        }
  }
}

TEST(ProbesEvaluator, CutsChangeNothing) {
  rig::expect_cuts_change_nothing(rig::options("probes", kKeys), rig::numbers("label", 29),
                                  [] { return std::make_unique<MadeUpHeads>(29); });
}

TEST(ProbesEvaluator, ValuesHaveTheDeclaredNames) {
  std::vector<std::string> names, declared;
  const std::vector<eval::Result> results = evaluate(5, 2, 1);
  for (const auto& [name, value] : results[0].values) names.push_back(name);
  for (const eval::Metric& m : eval::metrics_of(rig::options("probes", kKeys)))
    declared.push_back(m.name);
  EXPECT_EQ(names, declared);
}

TEST(ProbesEvaluator, AnInterruptedEvaluationHasNoValue) {
  for (const eval::Result& r : evaluate(40, 6, 2, 1)) {
    EXPECT_TRUE(r.interrupted);
    EXPECT_TRUE(r.values.empty());
  }
}

// ---------------------------------------------------------------- real models

struct ModelRoot {
  models::ModelOptions model;
  void bind(config::Table& t) { t.table("model", model, ""); }
};

std::unique_ptr<models::Model> made(const std::string& keys) {
  ModelRoot root;
  const std::string trunk = "trunk = { kind = \"resnet\", depth = 18, width = 4 }\n";
  config::Deck({"deck.toml", "[model]\nimage_size = 32\nnum_classes = 5\n" + trunk + keys, {}},
               root)
      .throw_if_any();
  return models::make_model(root.model, {});
}

TEST(ProbesEvaluator, NamesProbesThatTheModelHas) {
  const auto probes = made(R"(kind = "linear_probe"
[[model.probe]]
tap = "res3"
pool = 4
head = { kind = "mlp", layers = [5] }
[[model.probe]]
tap = "flatten"
head = { kind = "mlp", layers = [5] }
)");
  auto refused = [&](const std::string& kind, const std::string& keys,
                     const std::vector<std::string>& parts) {
    try {
      eval::make_pass(rig::options(kind, keys), *probes);
      ADD_FAILURE() << keys << " was accepted";
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::Exit::config);
      for (const std::string& part : parts)
        EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  refused("probes", "probes = [\"res3\", \"flat\"]", {"\"flat\"", "res3, flatten"});
  refused("classification", "", {"probe: missing", "res3, flatten"});
  refused("classification", "probe = \"flat\"", {"probe: there is no \"flat\"", "res3, flatten"});
  refused("classification", "probe = \"res3\"\nrecall_at = [6]", {"6", "5 classes"});
  const auto pass = [&](const std::string& keys) {
    return eval::make_pass(rig::options("classification", keys), *probes);
  };
  EXPECT_EQ(pass("probe = \"res3\"")->name(), "rank classes of res3");
  EXPECT_EQ(pass("probe = \"res3\"\nmean_ap = true")->name(), "rank and score classes of res3");
  EXPECT_NE(pass("probe = \"res3\"")->name(), pass("probe = \"flatten\"")->name());
}

}  // namespace
