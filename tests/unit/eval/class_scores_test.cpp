// SPDX-License-Identifier: Apache-2.0
// Tests mean average precision, precision and recall at k, masks and several classes per image
// with made scores, many of them equal. NumPy computed the values (record_class_scores.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "cut_rig.hpp"
#include "eval/class_metrics.hpp"
#include "eval/classes/class_pass.hpp"
#include "rig.hpp"
#include "tests/unit/recorded.hpp"
#include "thread_ranks.hpp"

namespace {

using Values = std::vector<std::pair<std::string, double>>;

struct MadeScores {
  int64_t images = 0, classes = 0;
  std::vector<int64_t> k;
  std::vector<float> scores, targets;  // [images, classes]
  std::vector<int32_t> labels, masks;
  std::map<std::string, double> by_label, by_target;
};

std::vector<MadeScores> made_sets() {
  std::ifstream file(tests::source_file("tests/data/class_scores.jsonl"));
  std::vector<MadeScores> out;
  for (std::string line; std::getline(file, line);) {
    const auto j = nlohmann::json::parse(line);
    out.push_back({j["images"], j["classes"], j["k"], j["scores"], j["targets"], j["labels"],
                   j["masks"], j["by_label"], j["by_target"]});
  }
  return out;
}

// Image i is the number i.
class MadeSource : public data::Source {
 public:
  explicit MadeSource(const MadeScores& made) : made_(made) {}
  int64_t size() const override { return made_.images; }
  std::string key(int64_t index) const override { return fmt::format("made:{}", index); }
  std::string summary() const override { return ""; }
  data::Sample read(int64_t index) const override {
    data::Array image(device::DType::f32, {1}), targets(device::DType::f32, {made_.classes}),
        label(device::DType::i32, {}), mask(device::DType::i32, {});
    image.f32()[0] = float(index);
    std::copy_n(made_.targets.begin() + index * made_.classes, made_.classes, targets.f32());
    label.i32()[0] = made_.labels[size_t(index)];
    mask.i32()[0] = made_.masks[size_t(index)];
    data::Sample sample;
    sample["image"] = std::move(image);
    sample["tags"] = std::move(targets);
    sample["label"] = std::move(label);
    sample["counts"] = std::move(mask);
    return sample;
  }
  data::Spec spec() const {
    return {{"image", data::FieldSpec::array(device::DType::f32, {1})},
            {"tags", data::FieldSpec::array(device::DType::f32, {made_.classes})},
            {"label", data::FieldSpec::array(device::DType::i32, {})},
            {"counts", data::FieldSpec::array(device::DType::i32, {})}};
  }

 private:
  const MadeScores& made_;
};

class MadePass : public eval::ClassPass {
 public:
  explicit MadePass(const MadeScores& made) : made_(made) {}
  std::string name() const override { return "score classes"; }
  std::vector<models::InputSpec> inputs() const override { return {}; }
  int64_t classes() const override { return made_.classes; }
  kernels::ClassLoss loss() const override { return kernels::ClassLoss::softmax; }
  void prepare(const models::HostBatch& batch, const models::Inputs&) const override {
    batch_ = batch;
  }
  void run(nn::Context&, const models::Inputs&, const eval::ClassNumbers& to) override {
    for (int64_t i = 0; i < batch_.examples; ++i) {
      const auto image = int64_t(batch_.features.at("image").f32()[i]);
      const float* scores = made_.scores.data() + image * made_.classes;
      const int32_t label = batch_.features.at("label").i32()[i];
      ASSERT_TRUE(label >= 0 && label < made_.classes);
      to.loss[i] = double(scores[label]);
      to.rank[i] = 0;
      for (int64_t c = 0; c < made_.classes; ++c)
        to.rank[i] += scores[c] > scores[label] || (c < label && scores[c] == scores[label]);
      std::copy_n(scores, made_.classes, to.scores + i * made_.classes);
    }
  }

 private:
  const MadeScores& made_;
  mutable models::HostBatch batch_;
};

// Returns the values of each rank.
std::vector<Values> evaluate(const MadeScores& made, int64_t batch, int size,
                             const std::string& keys) {
  auto source = std::make_unique<MadeSource>(made);
  const data::Spec spec = source->spec();
  const data::Dataset set("val", std::move(source), data::Pipeline("", spec, {}));
  std::vector<Values> out(static_cast<size_t>(size));
  rig::ThreadRanks ranks(size);
  ranks.run_all([&](comm::Comm& world) {
    MadePass pass(made);
    const auto evaluator = eval::make_evaluator(rig::options("classification", keys));
    const eval::Result result = evaluator->run({.world = world,
                                                .dataset = set,
                                                .loader = {},
                                                .batch = batch,
                                                .pass = &pass,
                                                .forward = rig::runs_of(pass)});
    out[size_t(world.rank())] = result.values;
  });
  return out;
}

std::string all_keys(const MadeScores& made) {
  return fmt::format("k = [{0}]\nmean_ap = true\nprecision_at = [{0}]\nrecall_at = [{0}]\n",
                     fmt::join(made.k, ", "));
}

void compare(const Values& got, const std::map<std::string, double>& want,
             const std::string& where) {
  std::map<std::string, double> all(got.begin(), got.end());
  all.erase("loss");
  EXPECT_EQ(all.size(), want.size()) << where;
  for (const auto& [name, value] : want) {
    ASSERT_TRUE(all.contains(name)) << where << ", " << name;
    EXPECT_NEAR(all.at(name), value, 1e-12) << where << ", " << name;
  }
}

TEST(ClassScores, AreThoseOfNumpyForEverySetBatchAndNumberOfRanks) {
  const std::vector<MadeScores> sets = made_sets();
  ASSERT_EQ(sets.size(), 16u);
  for (const auto& [mode, mine] :
       {std::pair{"skip_unlabelled = true\n", &MadeScores::by_label},
        {"targets = \"tags\"\nmask = \"counts\"\n", &MadeScores::by_target}})
    for (size_t s = 0; s < sets.size(); ++s) {
      const std::string keys = all_keys(sets[s]) + mode;
      const Values first = evaluate(sets[s], 4, 1, keys)[0];
      compare(first, sets[s].*mine, fmt::format("set {}, {}", s, mode));
      for (int64_t batch : {1, 7, 128})
        for (int size : {1, 2, 3, 4})
          for (const Values& values : evaluate(sets[s], batch, size, keys))
            EXPECT_EQ(values, first)
                << "set " << s << ", batch " << batch << ", " << size << " ranks";
    }
}

TEST(ClassScores, CutsChangeNothing) {
  const std::vector<MadeScores> sets = made_sets();
  const auto made =
      std::ranges::find_if(sets, [](const MadeScores& one) { return one.images > 24; });
  ASSERT_NE(made, sets.end());
  for (const char* mode : {"skip_unlabelled = true\n", "targets = \"tags\"\nmask = \"counts\"\n"}) {
    auto source = std::make_unique<MadeSource>(*made);
    const data::Spec spec = source->spec();
    rig::expect_cuts_change_nothing(
        rig::options("classification", all_keys(*made) + mode),
        data::Dataset("val", std::move(source), data::Pipeline("", spec, {})),
        [&] { return std::make_unique<MadePass>(*made); });
  }
}

TEST(ClassScores, LeaveOutImagesForEveryMetric) {
  const MadeScores made = made_sets()[5];
  double loss = 0, counted = 0;
  for (int64_t i = 0; i < made.images; ++i) {
    const int32_t label = made.labels[size_t(i)];
    if (label < 0 || !made.masks[size_t(i)]) continue;
    loss += double(made.scores[size_t(i * made.classes + label)]);
    ++counted;
  }
  ASSERT_TRUE(counted > 1 && counted < double(made.images) - 1);
  const Values got =
      evaluate(made, 3, 2, all_keys(made) + "skip_unlabelled = true\nmask = \"counts\"\n")[0];
  EXPECT_EQ((std::map<std::string, double>(got.begin(), got.end()).at("loss")), loss / counted);
  MadeScores none = made;
  std::fill(none.masks.begin(), none.masks.end(), 0);
  EXPECT_TRUE(
      evaluate(none, 3, 2, all_keys(made) + "mask = \"counts\"\nskip_unlabelled = true\n")[0]
          .empty());
}

TEST(ClassScores, ValuesHaveTheDeclaredNames) {
  const MadeScores made = made_sets()[5];
  for (const char* mode : {"skip_unlabelled = true\n", "targets = \"tags\"\n"}) {
    const std::string keys = all_keys(made) + mode;
    std::vector<std::string> names, declared;
    const Values got = evaluate(made, 3, 2, keys)[0];
    for (const auto& [name, value] : got) names.push_back(name);
    for (const eval::Metric& m : eval::metrics_of(rig::options("classification", keys)))
      declared.push_back(m.name);
    EXPECT_EQ(names, declared);
  }
}

TEST(ClassScores, ABrokenModelHasNoAveragePrecision) {
  MadeScores made = made_sets()[5];
  std::fill_n(made.scores.begin(), made.classes, std::numeric_limits<float>::quiet_NaN());
  const Values got = evaluate(made, 3, 2, all_keys(made) + "targets = \"tags\"\n")[0];
  for (const auto& [name, value] : got)
    EXPECT_EQ(std::isnan(value), !name.starts_with("top")) << name;
}

TEST(ClassScores, AveragePrecisionDoesNotDependOnTheOrderOfEqualScores) {
  const std::vector<float> equal(4, 0.5f), last = {0, 0, 0, 1}, first = {1, 0, 0, 0};
  EXPECT_EQ(eval::average_precision(equal.data(), last.data(), 4), 0.25);
  EXPECT_EQ(eval::average_precision(equal.data(), first.data(), 4), 0.25);
  const std::vector<float> falling = {4, 3, 2, 1}, shows = {0, 1, 1, 0};
  // Precision is 1/2 after the first hit, 2/3 after the second one and all that follow.
  EXPECT_DOUBLE_EQ(*eval::average_precision(falling.data(), shows.data(), 4), 2.0 / 3);
  EXPECT_FALSE(eval::average_precision(falling.data(), std::vector<float>(4, 0).data(), 4));
}

}  // namespace
