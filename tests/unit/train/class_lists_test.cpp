// SPDX-License-Identifier: Apache-2.0
// Tests that sets which are used together number their classes in the same way.
#include "train/class_lists.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/text.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTwoSets = R"(
run   = { dir = "unused", device = "cpu" }
train = { data = "train", total_steps = 10, global_batch = 96 }
[model]
kind        = "classifier"
image_size  = 16
num_classes = 3
trunk       = { kind = "vit", patch = 8, depth = 1, width = 32, mlp = 48, heads = 2, pool = "gap" }
[optimizer]
kind          = "adamw"
learning_rate = 1e-3
)";

class ClassLists : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = (fs::temp_directory_path() / fmt::format("class_lists_{}", ::getpid())).string();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    add("train", {"cat", "dog", "fox"});
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Adds a set whose classes are sub-folders.
  void add(const std::string& name, const std::vector<std::string>& classes,
           const std::string& more = "") {
    for (const std::string& one : classes) fs::create_directories(folder_ + "/" + name + "/" + one);
    table(name, fmt::format("kind = \"class_folder\"\npath = \"{}/{}\"\n{}", folder_, name, more),
          "");
  }
  // Adds a set whose classes are texts, numbered by a file of these names.
  void add_table(const std::string& name, const std::vector<std::string>& classes) {
    const std::string file = fmt::format("{}/{}.txt", folder_, name);
    std::ofstream(file) << base::join(classes, "\n");
    table(name, "kind = \"folder\"\ncaptions = \"nowhere.tsv\"\nsample = \"caption\"\n",
          fmt::format("class_number(\"{}\", outkey=\"number\") | copy(\"number\", \"label\") | ",
                      file));
  }
  void table(const std::string& name, const std::string& source, const std::string& ops) {
    sets_ += fmt::format(
        "[data.{}]\n{}\npreprocess = '{}decode | resize(16) | value_range(-1, 1) | keep(\"image\", "
        "\"label\")'\n",
        name, source, ops);
    names_.insert(name);
  }

  std::string problems(const std::string& evals, std::vector<std::string> overrides = {},
                       std::vector<std::string> removals = {},
                       const std::set<std::string>& written = {}) {
    Recipe recipe;
    config::Deck deck(
        {"deck.toml", kTwoSets + sets_ + evals, std::move(overrides), std::move(removals)}, recipe);
    EXPECT_EQ(base::join(deck.problems().lines, "\n"), "");
    check_class_lists(recipe, deck, *models::make_model(recipe.model, recipe.memory),
                      {names_, written});
    return base::join(deck.problems().lines, "\n");
  }
  // Returns what differs from the classes that a checkpoint names.
  std::string since(const std::string& trained, const std::string& evals,
                    const std::vector<std::string>& allowed = {},
                    std::vector<std::string> overrides = {},
                    const std::set<std::string>& written = {}) {
    Recipe recipe;
    config::Deck deck({"deck.toml", kTwoSets + sets_ + evals, std::move(overrides), {}}, recipe);
    EXPECT_EQ(base::join(deck.problems().lines, "\n"), "");
    const auto made = models::make_model(recipe.model, recipe.memory);
    const ClassSets sets{names_, written};
    text_ = class_text(recipe, *made, sets);
    return class_text_problem(recipe, *made, sets, trained, "old.h5", allowed);
  }
  static std::string evaluator(const std::string& kind, const std::string& data,
                               const std::string& train_data = "") {
    return fmt::format("[eval.one]\nkind = \"{}\"\ndata = \"{}\"\n{}", kind, data,
                       train_data.empty() ? "" : fmt::format("train_data = \"{}\"\n", train_data));
  }

  std::string folder_, sets_, text_;
  std::set<std::string> names_;
};

void says(const std::string& text, const std::vector<std::string>& fragments) {
  for (const std::string& f : fragments)
    EXPECT_NE(text.find(f), text.npos) << "'" << f << "' is not in: " << text;
}

TEST_F(ClassLists, OfTrainingAndEvaluation) {
  add("lacks_last", {"cat", "dog"});
  add("lacks_one", {"cat", "fox"});
  add("one_list", {"cat", "fox"}, fmt::format("classes = \"{}/train\"", folder_));
  add_table("texts", {"cat", "dog", "fox"});
  add_table("other_order", {"cat", "fox", "dog"});
  for (const char* fine : {"lacks_last", "one_list", "texts"})
    EXPECT_EQ(problems(evaluator("classification", fine)), "") << fine;
  const std::string found = problems(evaluator("classification", "lacks_one"));
  says(found, {"data.lacks_one.path",
               "class 1 is \"fox\" in [data.lacks_one], and \"dog\" in "
               "[data.train]"});
  says(problems(evaluator("classification", "other_order")),
       {"data.other_order.preprocess", "class 1 is \"fox\"", "[data.train]"});
}

TEST_F(ClassLists, OfAMixture) {
  add("a", {"cat", "dog"});
  add("b", {"cat", "fox"});
  says(problems("", {"train.mixture={ a = 1, b = 1 }"}, {"train.data"}),
       {"data.b.path", "class 1 is \"fox\" in [data.b], and \"dog\" in [data.a]"});
  EXPECT_EQ(problems("", {"train.mixture={ train = 1, a = 1 }"}, {"train.data"}), "");
}

// An evaluator that fits to one set and tests on another need not use the classes of training.
TEST_F(ClassLists, OfBothSetsOfAnEvaluator) {
  add("few", {"ant", "bee"});
  add("many", {"ant", "bee", "elk"});
  add("other", {"ant", "elk"});
  for (const char* kind : {"knn", "fewshot", "low_shot", "svm", "svm_low_shot"}) {
    EXPECT_EQ(problems(evaluator(kind, "many", "few")), "") << kind;
    says(problems(evaluator(kind, "many", "other")), {"class 1 is", "\"elk\"", "\"bee\""});
  }
}

// Sets whose labels are written beside predictions or features.
TEST_F(ClassLists, OfSetsThatAreWritten) {
  add("lacks_one", {"cat", "fox"});
  add("others", {"ant", "bee"});
  add("renamed", {"cat", "dot", "fox"});
  add_table("texts", {"cat", "fox", "dog"});
  auto predicted = [&](const std::string& set) {
    return problems("", {fmt::format("predict.data=\"{}\"", set)}, {}, {set});
  };
  auto extracted = [&](const std::string& set) {
    return problems("", {fmt::format("extract.data=\"{}\"", set)}, {}, {set});
  };
  EXPECT_EQ(predicted("train"), "");
  for (const char* set : {"lacks_one", "others", "renamed", "texts"})
    says(predicted(set), {fmt::format("data.{}.", set), "in [data.train]", "keep(\"image\")"});
  says(predicted("lacks_one"),
       {"class 1 is \"fox\" in [data.lacks_one], and \"dog\" in [data.train]"});
  // Features of other classes are useful.
  for (const char* set : {"train", "others", "renamed"}) EXPECT_EQ(extracted(set), "") << set;
  says(extracted("lacks_one"),
       {"class 1 is \"fox\" in [data.lacks_one], and \"dog\" in [data.train]"});
  says(extracted("texts"), {"class 1 is \"fox\" in [data.texts]"});
  // Without the field, nothing is written.
  const std::string image =
      "data.lacks_one.preprocess='decode | resize(16) | value_range(-1, 1) | keep(\"image\")'";
  EXPECT_EQ(problems("", {"predict.data='lacks_one'", image}, {}, {"lacks_one"}), "");
}

TEST_F(ClassLists, TextsInAnotherOrder) {
  add("pets", {"cat", "dog", "fox", "gnu"});
  auto scoring = [&](const std::string& texts) {
    return problems(evaluator("scoring", "pets") + "classes = " + texts);
  };
  for (const char* fine :
       {R"(["cat", "dog", "fox", "gnu"])", R"(["a cat", "an dog", "a fox", "a gnu"])",
        R"(["Cat", "gnu", "a fox", "a red gnu"])", R"(["sea bird", "dog", "bird", "cat"])"})
    EXPECT_EQ(scoring(fine), "") << fine;
  says(scoring(R"(["dog", "cat", "fox", "gnu"])"),
       {"eval.one.classes", "text 0 is \"dog\", and class 0 of [data.pets] is \"cat\""});
  says(scoring(R"(["cat", "gnu", "dog", "FOX"])"), {"text 1 is \"gnu\""});
  says(scoring(R"(["dog", "fox", "gnu", "lark"])"), {"text 0 is \"dog\""});
  std::ofstream(folder_ + "/texts") << "cat\nfox\ndog\ngnu\n";
  says(problems(evaluator("scoring", "pets") + "classes_file = \"" + folder_ + "/texts\""),
       {"eval.one.classes_file", "text 1 is \"fox\""});
}

// A folder was renamed, added or removed since the training.
TEST_F(ClassLists, OfTheTraining) {
  add("val", {"cat", "fox"});
  const std::string evals = evaluator("classification", "train");
  EXPECT_EQ(since("", evals), "");  // an old checkpoint
  EXPECT_EQ(text_, "cat\ndog\nfox");
  EXPECT_EQ(since("cat\ndog\nfox", evals), "");
  EXPECT_EQ(since("cat\ndog\nfox\ngnu", evals), "");
  EXPECT_EQ(since("cat\ndog", evals), "");
  says(
      since("cat\ndoe\nfox", evals),
      {"data.train.path: class 1 is \"dog\" in [data.train], and \"doe\" in the training of old.h5",
       "--allow-change data.train.path"});
  for (const char* key : {"data.train.path", "data.train", "data"})
    EXPECT_EQ(since("cat\ndoe\nfox", evals, {key}), "") << key;
  EXPECT_NE(since("cat\ndoe\nfox", evals, {"data.val"}), "");
  says(since("cat\ndog\nfox", "", {}, {"predict.data='val'"}, {"val"}), {"\"fox\" in [data.val]"});
  EXPECT_EQ(since("ant\nbee", "", {"data.train"}, {"extract.data='val'"}, {"val"}), "");
}

}  // namespace
}  // namespace train
