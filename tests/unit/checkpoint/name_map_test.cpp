// SPDX-License-Identifier: Apache-2.0
// Tests names of files against ours, as published and as [init] requests, and position tables
// against recorded ones.
#include "checkpoint/name_map.hpp"

#include <gtest/gtest.h>

#include "checkpoint/resample.hpp"
#include "models/trunks/vit.hpp"
#include "tests/unit/optim/golden_file.hpp"

namespace {

using checkpoint::FileTensor;
using checkpoint::InitOptions;
using checkpoint::InitPlan;
using checkpoint::Wanted;

TEST(Resample, EqualsEveryRecordedTable) {
  golden::File file("posemb.h5");
  int tables = 0;
  for (const std::string& name : file.children("/")) {
    int from = 0, to = 0;
    if (std::sscanf(name.c_str(), "resample_%dto%d", &from, &to) != 2) continue;
    ++tables;
    std::vector<float> want = file.floats(name + "/new");
    std::vector<float> got = checkpoint::resample_grid(file.floats(name + "/old"), from, to, 5);
    double tolerance = file.number(name + "/new", "tol");
    ASSERT_EQ(got.size(), want.size()) << name;
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(double(got[i]), double(want[i]), tolerance) << name << " " << i;
  }
  EXPECT_EQ(tables, 6);
}

TEST(Resample, OddSizes) {
  std::vector<float> table = {1, 2, 3, 4};
  EXPECT_EQ(checkpoint::resample_grid(table, 2, 2, 1), table);
  EXPECT_EQ(checkpoint::resample_grid(table, 2, 1, 1), (std::vector<float>{1}));
  EXPECT_EQ(checkpoint::resample_grid({7, 8}, 1, 2, 2),
            (std::vector<float>{7, 8, 7, 8, 7, 8, 7, 8}));
  EXPECT_EQ(checkpoint::grid_side(196), 14);
  EXPECT_EQ(checkpoint::grid_side(197), -1);
  EXPECT_EQ(checkpoint::grid_side(0), -1);
}

class File : public checkpoint::WeightFile {
 public:
  explicit File(const std::vector<std::pair<std::string, std::vector<int64_t>>>& tensors)
      : WeightFile("some.npz") {
    for (const auto& [name, shape] : tensors)
      add({name, shape, name == "count" ? std::optional<device::DType>() : device::DType::f32,
           "<f4"});
  }

 private:
  void seek(size_t) override {}
  void take(char*, int64_t) override {}
};

const std::vector<Wanted> kModel = {{"encoder/a", {2}},
                                    {"encoder/pos_embedding", {1, 4, 3}, true},
                                    {"decoder/b", {3}},
                                    {"pos_embedding_decoder", {1, 9, 3}}};

std::string problem(const File& file, const InitOptions& options) {
  try {
    checkpoint::plan_init(kModel, file, options);
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::Exit::checkpoint);
    return e.what();
  }
  return "";
}
void says(const std::string& text, const std::vector<std::string>& fragments) {
  for (const std::string& f : fragments)
    EXPECT_NE(text.find(f), text.npos) << "'" << f << "' is not in:\n" << text;
}

TEST(NameMap, RootsAndOrder) {
  for (std::string root : {"params/", "opt/target/", ""}) {
    File file({{root + "pos_embedding_decoder", {1, 9, 3}},
               {root + "decoder/b", {3}},
               {root + "encoder/a", {2}},
               {root + "encoder/pos_embedding", {1, 4, 3}}});
    InitPlan plan = checkpoint::plan_init(kModel, file, {});
    ASSERT_EQ(plan.loads.size(), 4u) << root;
    EXPECT_EQ(plan.loads[0].wanted, 3u);
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(plan.loads[i].source, i);
    EXPECT_TRUE(plan.skipped.empty() && plan.missing.empty() && plan.unmapped.empty() &&
                plan.unused.empty());
  }
}

TEST(NameMap, EverythingMustFit) {
  File file({{"params/encoder/a", {3}},
             {"params/encoder/pos_embedding", {1, 6, 3}},
             {"params/decoder/x", {3}},
             {"params/pos_embedding_decoder", {1, 4, 3}},
             {"opt/mu", {2}}});
  says(problem(file, {}), {"some.npz", "encoder/a: the file has [3], this model [2]",
                           "encoder/pos_embedding: the file has [1, 6, 3]",
                           "missing in the file: decoder/b [3] (looked for params/decoder/b)",
                           "only in the file: params/decoder/x",
                           // The decoder's table is never resampled.
                           "pos_embedding_decoder: the file has [1, 4, 3], this model [1, 9, 3]",
                           "Not one tensor", "dont_load"});
  File other({{"a", {2}}});
  says(problem(other, {}), {"Not one tensor could be loaded; the names in the file begin with a"});
}

// Returns tensors of a ViT that show its sizes.
using Tensors = std::vector<std::pair<std::string, std::vector<int64_t>>>;
Tensors vit(int64_t depth, int64_t width, int64_t heads = 2, int64_t patch = 8) {
  Tensors out = {{"encoder/embedding/kernel", {patch, patch, 3, width}}};
  for (int64_t i = 0; i < depth; ++i) {
    const std::string block = fmt::format("encoder/Transformer/encoderblock_{}", i);
    out.push_back({block + "/MlpBlock_0/Dense_0/kernel", {width, 48}});
    out.push_back(
        {block + "/MultiHeadDotProductAttention_0/query/kernel", {width, heads, width / heads}});
  }
  return out;
}

TEST(NameMap, ViTOfAnotherForm) {
  auto refused = [](const Tensors& file, const Tensors& model, const std::string& more = "") {
    std::vector<Wanted> wanted;
    for (const auto& [name, shape] : model) wanted.push_back({name, shape});
    if (!more.empty()) wanted.push_back({more, {1}});
    try {
      checkpoint::plan_init(wanted, File(file), {},
                            more.empty()
                                ? models::vit_weights({.patch_height = 1, .patch_width = 1})
                                : models::TrunkWeights());
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), more.empty() ? base::Exit::config : base::Exit::checkpoint);
      return std::string(e.what());
    }
    return std::string();
  };
  says(
      refused(vit(2, 32), vit(3, 32)),
      {"model.trunk.depth = 3: the file holds a ViT of depth 2, width 32, mlp 48, heads 2, patch 8",
       "this model has a ViT of depth 3", "make model.trunk the same, or take another file",
       "missing in the file: encoder/Transformer/encoderblock_2/MlpBlock_0/Dense_0/kernel"});
  says(refused(vit(3, 32), vit(2, 32)), {"model.trunk.depth = 2: ", "only in the file: "});
  says(refused(vit(2, 32), vit(2, 64)), {"model.trunk.width = 64: "});
  says(refused(vit(2, 32), vit(2, 32, 4)), {"model.trunk.heads = 4: "});
  says(refused(vit(2, 32), vit(2, 32, 2, 16)), {"model.trunk.patch = 16: "});
  // A captioner's encoder has other keys, so that what is missing is listed.
  says(refused(vit(2, 32), vit(3, 32), "decoder/a"), {"missing in the file: encoder/Transformer"});
}

TEST(NameMap, DontLoad) {
  File file({{"encoder/a", {2}},
             {"encoder/pos_embedding", {1, 4, 3}},
             {"decoder/b", {7}},
             {"head/kernel", {9}},
             {"encoder/cls", {9}},
             {"head/x", {1}}});
  says(problem(file, {}), {"decoder/b", "pos_embedding_decoder", "head/x"});
  EXPECT_EQ(problem(file, {}).find("head/kernel"), std::string::npos)
      << "by default the head is not loaded, as published";
  InitOptions options;
  options.dont_load = {"decoder/.*", "pos_embedding_decoder", "head/.*", ".*/cls"};
  InitPlan plan = checkpoint::plan_init(kModel, file, options);
  EXPECT_EQ(plan.loads.size(), 2u);
  ASSERT_EQ(plan.skipped.size(), 1u);
  says(plan.skipped[0], {"decoder/b"});
  ASSERT_EQ(plan.missing.size(), 1u);
  says(plan.missing[0], {"pos_embedding_decoder"});
  EXPECT_EQ(plan.unused.size(), 3u);
  // Use::as_it_is loads every tensor that fits.
  options.dont_load = {"encoder/a", "decoder/.*", "pos_embedding_decoder", "head/.*", ".*/cls"};
  plan = checkpoint::plan_init(kModel, file, options, {}, checkpoint::Use::as_it_is);
  EXPECT_EQ(plan.loads.size(), 2u);
  ASSERT_EQ(plan.skipped.size(), 1u);
  says(plan.skipped[0], {"decoder/b", "dont_load", "the file has [7], this model [3]"});
  EXPECT_EQ(plan.missing.size(), 1u);
  EXPECT_EQ(plan.unused.size(), 3u);
  options.dont_load = {"encoder/.*", ".*"};
  says(problem(file, options), {"nothing is left"});
}

// An own export of a classifier: its head is loaded unless a new run begins with the file.
TEST(NameMap, HeadOfAnExport) {
  const std::vector<Wanted> model = {{"encoder/a", {2}}, {"head/kernel", {2, 3}}};
  File file({{"encoder/a", {2}}, {"head/kernel", {2, 3}}});
  EXPECT_EQ(checkpoint::plan_init(model, file, {}).loads.size(), 1u);
  EXPECT_EQ(checkpoint::plan_init(model, file, {}, {}, checkpoint::Use::as_it_is).loads.size(), 2u);
  File other({{"encoder/a", {2}}, {"head/kernel", {2, 7}}});
  const InitPlan plan = checkpoint::plan_init(model, other, {}, {}, checkpoint::Use::as_it_is);
  EXPECT_EQ(plan.loads.size(), 1u);
  ASSERT_EQ(plan.skipped.size(), 1u);
  says(plan.skipped[0], {"head/kernel", "the file has [2, 7]"});
}

TEST(NameMap, Map) {
  // From two towers the map takes only the image side, and its table from another place. The
  // longest prefix wins.
  File file({{"params/img/a", {2}},
             {"params/img/old/posembed", {1, 4, 3}},
             {"params/txt/b", {3}},
             {"params/img/head/bias", {3}}});
  InitOptions options;
  options.map = {{"encoder", "params/img"}, {"encoder/pos_embedding", "params/img/old/posembed"}};
  InitPlan plan = checkpoint::plan_init(kModel, file, options);
  EXPECT_EQ(plan.loads.size(), 2u);
  EXPECT_EQ(plan.unmapped.size(), 2u);
  EXPECT_EQ(plan.unused.size(), 2u);
  options.map = {{"encoder", "params/im"}};
  says(problem(file, options), {"looked for params/im/a"});
  File whole({{"model/encoder/a", {2}},
              {"model/encoder/pos_embedding", {1, 4, 3}},
              {"model/decoder/b", {3}},
              {"model/pos_embedding_decoder", {1, 9, 3}},
              {"step", {1}}});
  options.map = {{"", "model"}};
  EXPECT_EQ(checkpoint::plan_init(kModel, whole, options).loads.size(), 4u);
}

TEST(NameMap, PositionTables) {
  InitOptions options;
  options.dont_load = {"decoder/.*", "pos_embedding_decoder"};
  auto with = [](std::vector<int64_t> shape) {
    return File({{"encoder/a", {2}}, {"encoder/pos_embedding", std::move(shape)}});
  };
  EXPECT_TRUE(checkpoint::plan_init(kModel, with({1, 196, 3}), options).loads[1].resample);
  EXPECT_TRUE(checkpoint::plan_init(kModel, with({1, 197, 3}), options).loads[1].resample)
      << "a class token's row";
  EXPECT_FALSE(checkpoint::plan_init(kModel, with({1, 4, 3}), options).loads[1].resample);
  for (std::vector<int64_t> shape :
       std::vector<std::vector<int64_t>>{{1, 8, 3}, {2, 9, 3}, {1, 9, 4}, {9, 3}, {1, 1 << 20, 3}})
    says(problem(with(shape), options),
         {"encoder/pos_embedding: the file has", "this model [1, 4, 3]"});
  options.resample = false;
  InitPlan plan = checkpoint::plan_init(kModel, with({1, 196, 3}), options);
  EXPECT_EQ(plan.loads.size(), 1u);
  ASSERT_EQ(plan.skipped.size(), 1u);
  says(plan.skipped[0], {"keep", "[1, 196, 3]"});
  EXPECT_EQ(checkpoint::plan_init(kModel, with({1, 4, 3}), options).loads.size(), 2u);
}

TEST(NameMap, OnlyFloatsAreWeights) {
  File file({{"count", {2}}, {"encoder/pos_embedding", {1, 4, 3}}});
  InitOptions options;
  options.map = {{"encoder/a", "count"}, {"encoder/pos_embedding", "encoder/pos_embedding"}};
  says(problem(file, options), {"encoder/a", "not a type of weights"});
}

}  // namespace
