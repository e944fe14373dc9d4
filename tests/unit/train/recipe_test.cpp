// SPDX-License-Identifier: Apache-2.0
// Checks that need more than one section of the deck, and the options that the recipe derives for
// the engine, the data and the run.
#include "train/recipe.hpp"

#include <gtest/gtest.h>

#include "base/text.hpp"
#include "tests/unit/recorded.hpp"

namespace train {
namespace {

const std::string kGoodDeck = R"(
run   = { dir = "unused", device = "cpu" }
train = { data = "made", total_steps = 10, global_batch = 96 }
[model]
kind       = "cappa"
image_size = 16
vocab_size = 50
seq_len    = 8
encoder    = { patch = 8, depth = 1, width = 32, mlp = 48, heads = 2 }
decoder    = { depth = 1 }
[optimizer]
kind          = "adafactor"
learning_rate = 1e-3
[data.made]
kind       = "synthetic"
image_size = 16
seq_len    = 8
vocab_size = 50
[eval.val]
kind        = "perplexity"
data        = "made"
every_steps = 5
)";

// A data set of JPEG or PNG files whose pixels go from bytes to [low, 1].
std::string tars(const std::string& name, int low, const std::string& tokenizer) {
  return fmt::format(R"(
[tokenizer.{0}]
kind = "sentencepiece"
path = "{2}"
[data.{0}]
kind       = "webdataset"
path       = "nowhere.tar"
fields     = {{ image = "png", text = "txt" }}
preprocess = '''decode | resize(16) | value_range({1}, 1)
  | tokenize("{0}", max_len=8, eos="sticky", inkey="text", outkey="labels")
  | keep("image", "labels")'''
)",
                     name, low, tokenizer);
}
const std::string kTokenizer =
    tests::source_file("tests/golden/tokenizer/unigram.model");  // 168 ids

// A deck with more tables and with overrides, and its recipe.
struct CheckedDeck {
  Recipe recipe;
  config::Deck deck;

  explicit CheckedDeck(std::vector<std::string> overrides, const std::string& more = "",
                       std::vector<std::string> removals = {})
      : deck(config::DeckSource{"deck.toml", kGoodDeck + more, std::move(overrides),
                                std::move(removals)},
             recipe) {
    if (!deck.problems().any()) recipe.cross_check(deck);
  }
  std::string problems() const { return base::join(deck.problems().lines, "\n"); }
};

// A deck has one problem, whose line holds these fragments.
void expect_problem(const CheckedDeck& checked, const std::vector<std::string>& fragments) {
  EXPECT_EQ(checked.deck.problems().lines.size(), 1u) << checked.problems();
  for (const std::string& fragment : fragments)
    EXPECT_NE(checked.problems().find(fragment), std::string::npos)
        << "'" << fragment << "' is not in: " << checked.problems();
}

TEST(Recipe, AGoodDeckHasNoProblem) { EXPECT_EQ(CheckedDeck({}).problems(), ""); }

TEST(Recipe, NamesOfDataSetsMustExist) {
  for (const char* key : {"train.data", "eval.val.data", "show.data"})
    expect_problem(CheckedDeck({fmt::format("{}=mad", key)}),
                   {key, "there is no [data.mad]; did you mean \"made\"?"});
  expect_problem(CheckedDeck({"index.data=[\"made\", \"mad\"]"}),
                 {"index.data", "there is no [data.mad]"});
}

// Each key that names a file or folder refuses text that only a shell expands, and URLs.
TEST(Recipe, PathsAreOfThisMachine) {
  const std::string sets = R"(
[tokenizer.words]
kind = "sentencepiece"
path = "w.model"
[data.tars]
kind       = "webdataset"
path       = "a.tar"
fields     = { image = "png" }
preprocess = 'decode | resize(16)'
[data.rows]
kind       = "hdf5"
path       = "a.h5"
fields     = { image = "images: bytes" }
preprocess = 'decode | resize(16)'
[data.classes]
kind       = "class_folder"
path       = "a"
preprocess = 'decode | resize(16)'
[data.folder]
kind       = "folder"
path       = "a"
captions   = "a.tsv"
preprocess = 'decode | resize(16)'
[eval.zero_shot]
kind         = "scoring"
data         = "made"
classes_file = "names.txt"
)";
  for (const char* key : {"run.dir",
                          "tokenizer.words.path",
                          "data.tars.path",
                          "data.rows.path",
                          "data.classes.path",
                          "data.classes.classes",
                          "data.folder.path",
                          "data.folder.captions",
                          "loader.index_dir",
                          "loader.stage_dir",
                          "eval.zero_shot.classes_file",
                          "init.from",
                          "checkpoint.branch_from",
                          "evaluate.from",
                          "evaluate.out",
                          "evaluate.files",
                          "extract.from",
                          "extract.out",
                          "predict.from",
                          "predict.out",
                          "caption.from",
                          "caption.out"})
    for (const char* path : {"~/x.tsv", "s3://bucket/x.tsv", "$HOME/x.tsv"}) {
      if (std::string_view(key) == "loader.stage_dir" && path[0] == '$') continue;
      const bool list = std::string_view(key) == "evaluate.from";
      const std::string value =
          fmt::format("{0}\"{1}\"{2}", list ? "[" : "", path, list ? "]" : "");
      expect_problem(CheckedDeck({fmt::format("{}={}", key, value)}, sets),
                     {key, fmt::format("\"{}\" ", path)});
    }
  expect_problem(CheckedDeck({"data.folder.preprocess='class_number(\"~/names.txt\")'"}, sets),
                 {"data.folder.preprocess", "\"~/names.txt\" begins with ~"});
}

// train.data and eval.val.data name data sets of equal content, so the problem is reported once.
TEST(Recipe, DataMustFitTheModel) {
  std::string sets;
  for (const char* name : {"one", "two"})
    sets += fmt::format("[data.{}]\nkind = \"synthetic\"\nimage_size = 16\nseq_len = 9\n", name);
  expect_problem(
      CheckedDeck({"train.data=one", "eval.val.data=two", "data.one.vocab_size=50",
                   "data.two.vocab_size=50"},
                  sets),
      {"data.one.kind", "yields labels i32 [9] where the model takes i32 [8]", "model.seq_len"});
  expect_problem(CheckedDeck({"data.made.preprocess='keep(\"image\")'"}),
                 {"data.made.preprocess", "the model needs \"labels\""});
  expect_problem(CheckedDeck({"model.vocab_size=49"}),
                 {"model.vocab_size", "49 is smaller than the 50 ids that [data.made] can yield"});
}

TEST(Recipe, MixturesAreOfOneKind) {
  const std::string other =
      "[data.other]\nkind = \"synthetic\"\nimage_size = 16\nseq_len = 8\nvocab_size = 50\n";
  auto mixed = [&](const std::string& weights, const std::string& more) {
    return CheckedDeck({"train.mixture={ " + weights + " }"}, other + more, {"train.data"});
  };
  EXPECT_EQ(mixed("made = 1.0, other = 3.0", "").problems(), "");
  expect_problem(mixed("made = 1.0, other = 3.0", "preprocess = 'copy(\"labels\", \"extra\")'\n"),
                 {"train.mixture", "[data.made] and [data.other] cannot be mixed",
                  "field 'extra' is missing in the first"});
  expect_problem(mixed("made = 1.0, other = 1e-9", ""), {"train.mixture", "\"other\" has 1e-09"});
  expect_problem(mixed("made = 1.0, othr = 1.0", ""), {"train.mixture", "no [data.othr]"});
}

TEST(Recipe, AnEvaluatorNeedsAModelThatCan) {
  expect_problem(CheckedDeck({}, "[eval.rank]\nkind = \"classification\"\ndata = \"made\"\n"),
                 {"eval.rank.kind", "classification needs a model that can rank classes",
                  "model.kind = \"cappa\" cannot"});
}

// A probe reads images and their classes, of two data sets, and no captions.
TEST(Recipe, AProbeReadsImagesAndLabelsOfTwoDataSets) {
  auto images = [](const std::string& name, const std::string& fields) {
    return fmt::format(
        "[data.{}]\nkind = \"webdataset\"\npath = \"nowhere.tar\"\nfields = {{ image = \"png\"{} "
        "}}\npreprocess = 'decode | resize(16) | value_range(-1, 1)'\n",
        name, fields);
  };
  const std::string label = ", label = \"cls\"";
  const std::string probe =
      "[eval.probe]\nkind = \"fewshot\"\ndata = \"test\"\ntrain_data = \"few\"\n";
  const std::string sets = images("test", label) + images("few", label);
  const CheckedDeck good({}, probe + sets);
  EXPECT_EQ(good.problems(), "");
  EXPECT_EQ(good.recipe.evaluated_sets(), (std::set<std::string>{"few", "made", "test"}));
  EXPECT_EQ(good.recipe.engine(0, 1).passes.size(), 2u);
  expect_problem(CheckedDeck({"eval.probe.train_data=fewer"}, probe + sets),
                 {"eval.probe.train_data", "there is no [data.fewer]; did you mean \"few\"?"});
  expect_problem(
      CheckedDeck({}, probe + images("test", label) + images("few", "")),
      {"data.few.preprocess", "eval.probe.train_data needs \"label\", [data.few] yields"});
  expect_problem(CheckedDeck({"eval.probe.data=made"}, probe + sets),
                 {"data.made", "eval.probe.data needs \"label\""});
  expect_problem(CheckedDeck({"eval.probe.tap=encodet"}, probe + sets),
                 {"eval.probe", "no tap \"encodet\"; did you mean \"encoded\"?", "block00_mean"});
  expect_problem(CheckedDeck({}, "[eval.probe]\nkind = \"fewshot\"\ndata = \"made\"\n"),
                 {"eval.probe", "train_data"});
}

// The labels of a probe may be of more classes than the model has.
TEST(Recipe, LimitsOfIdsDependOnTheReadersOfADataSet) {
  const CheckedDeck checked({},
                            "[eval.probe]\nkind = \"fewshot\"\ndata = \"test\"\n"
                            "train_data = \"made\"\n");
  EXPECT_EQ(checked.recipe.value_limits("test").size(), 0u);
  EXPECT_EQ(checked.recipe.value_limits("made").at("labels").below, 50) << "training reads it, too";
  EXPECT_EQ(checked.recipe.value_limits().at("labels").below, 50);
}

TEST(Recipe, AveragedWeightsNeedAnAverage) {
  const std::string average = "[ema]\ndecay = 0.99\n";
  expect_problem(CheckedDeck({"eval.val.weights=both"}), {"eval.val.weights", "[ema] table"});
  EXPECT_EQ(CheckedDeck({"eval.val.weights=both"}, average).problems(), "");
  expect_problem(CheckedDeck({"eval.val.weights=both"},
                             average + "[eval.val_ema]\nkind = \"perplexity\"\ndata = \"made\"\n"),
                 {"eval.val.weights", "calls its rows val_ema"});
}

TEST(Recipe, MetricsThatSteerTheRunExist) {
  for (const char* key : {"checkpoint.best", "early_stop.metric"}) {
    expect_problem(CheckedDeck({fmt::format("{}=\"val/perplexit:min\"", key)}),
                   {key, "[eval.val] yields no \"perplexit\""});
    expect_problem(CheckedDeck({fmt::format("{}=\"vl/perplexity:min\"", key)}),
                   {key, "there is no [eval.vl]"});
  }
  // The rows of the average have a name of their own.
  const std::string average = "[ema]\ndecay = 0.99\n";
  const std::string best = "checkpoint.best=\"val_ema/perplexity:min\"";
  EXPECT_EQ(CheckedDeck({best, "eval.val.weights=ema"}, average).problems(), "");
  expect_problem(CheckedDeck({best}, average), {"checkpoint.best", "[eval.val_ema]"});
}

TEST(Recipe, CpusRefuseSettingsOfGpus) {
  for (const char* setting :
       {"run.gemm_search=off", "run.cuda_graph=on", "mesh.gpu_exchange=mpi"}) {
    const std::string key = std::string(setting).substr(0, std::string(setting).find('='));
    expect_problem(CheckedDeck({setting}), {key, "run.device is \"cpu\""});
    EXPECT_EQ(CheckedDeck({setting, "run.device=auto"}).problems(), "");
  }
  for (const char* compute : {"fp16", "tf32"})
    expect_problem(CheckedDeck({fmt::format("precision.compute={}", compute)}),
                   {"precision.compute", "on GPUs only"});
}

TEST(Recipe, SomePassesCannotBeRepeatedByAGraph) {
  const std::vector<std::string> graphs = {"run.device=cuda", "run.cuda_graph=on"};
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), graphs.begin(), graphs.end());
    return CheckedDeck(more);
  };
  EXPECT_EQ(with({}).problems(), "");
  expect_problem(with({"determinism.level=mesh", "determinism.slices=32"}),
                 {"run.cuda_graph", "adds gradients within passes"});
  expect_problem(with({"model.encoder.dropout=0.1"}), {"run.cuda_graph", "dropout"});
}

TEST(Recipe, SlicesDivideTheBatch) {
  EXPECT_EQ(CheckedDeck({"determinism.level=mesh", "determinism.slices=32"}).problems(), "");
  expect_problem(CheckedDeck({"determinism.level=mesh", "determinism.slices=64"}),
                 {"determinism.slices", "train.global_batch = 96 is not divisible by slices = 64"});
}

TEST(Recipe, ShardingRulesAreReached) {
  auto rules = [](const std::string& first, const std::string& second) {
    return "[[sharding.rule]]\nmatch = \"" + first + "\"\n[[sharding.rule]]\nmatch = \"" + second +
           "\"\n";
  };
  EXPECT_EQ(CheckedDeck({}, rules("encoder/.*", ".*")).problems(), "");
  expect_problem(CheckedDeck({}, rules(".*", "encoder/.*")),
                 {"sharding.rule.1.match", "is never reached"});
  expect_problem(CheckedDeck({}, rules("encodr/.*", ".*")),
                 {"sharding.rule.0.match", "matches no parameter"});
  expect_problem(CheckedDeck({"sharding.parameters=sharded", "sharding.optimizer=sharded"},
                             "[[sharding.rule]]\nmatch = \"decoder/.*\"\noptimizer = "
                             "\"replicated\"\n"),
                 {"sharding.optimizer", "decoder/", "a replicated optimizer"});
}

TEST(Recipe, PathsOfParametersExist) {
  expect_problem(CheckedDeck({"log.groups=[\"encoder/.*\", \"encodr/.*\"]"}),
                 {"log.groups", "\"encodr/.*\" matches no parameter"});
  expect_problem(CheckedDeck({"init.from=a.npz", "init.map={ encod = \"img\" }"}),
                 {"init.map", "\"encod\" is neither a parameter"});
  EXPECT_EQ(CheckedDeck({"init.from=a.npz", "init.map={ encoder = \"img\" }"}).problems(), "");
  expect_problem(CheckedDeck({"init.from=a.npz", "checkpoint.branch_from=other"}),
                 {"init.from", "not from both"});
}

// Returns the text of the error that `work` raises, all problems of the deck; "" without one.
template <class Work>
std::string config_error(Work work) {
  try {
    work();
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::Exit::config);
    return e.what();
  }
  return "";
}

// The length of an epoch is known once the data is open.
TEST(Recipe, EpochsAreCheckedAgainstOpenedData) {
  auto opened = [](int64_t data_size) {
    CheckedDeck checked({"train.total_epochs=2"},
                        "[schedule.default]\nkind = \"cosine\"\nwarmup_steps = 5\n",
                        {"train.total_steps"});
    EXPECT_EQ(checked.problems(), "");
    return config_error([&] { checked.recipe.check_opened(checked.deck, data_size, {}); });
  };
  EXPECT_EQ(opened(0), "");
  EXPECT_EQ(opened(96 * 3), "");                                                       // 6 steps
  EXPECT_NE(opened(96 * 2).find("schedule.default.warmup_steps"), std::string::npos);  // 4 steps
}

TEST(Recipe, IdsAreCheckedAgainstOpenedTokenizers) {
  auto read = [](int64_t vocabulary, const std::string& tokenizer) {
    CheckedDeck checked({"train.data=words", fmt::format("model.vocab_size={}", vocabulary)},
                        tars("words", -1, tokenizer));
    EXPECT_EQ(checked.problems(), "");
    return config_error([&] { checked.recipe.check_tokenizers(checked.deck); });
  };
  EXPECT_EQ(read(168, kTokenizer), "");
  EXPECT_NE(read(167, kTokenizer).find("167 is smaller than the 168 ids that [data.words]"),
            std::string::npos);
  EXPECT_EQ(read(167, "nowhere.model"), "") << "a deck may be checked where its files are not";
}

TEST(Recipe, LimitsOfValuesAreTheModels) {
  const auto limits = CheckedDeck({}).recipe.value_limits();
  ASSERT_EQ(limits.size(), 1u);
  EXPECT_EQ(limits.at("labels").below, 50);
  EXPECT_EQ(limits.at("labels").key, "model.vocab_size");
}

// The model scales pixels only if all data sets in use scale them in the same way.
TEST(Recipe, PixelsStayBytesIfAllDataSetsAgree) {
  const std::string sets =
      tars("one", -1, kTokenizer) + tars("two", -1, kTokenizer) + tars("wide", 0, kTokenizer);
  auto bytes = [&](const std::string& train, const std::string& eval) {
    return CheckedDeck({"model.vocab_size=168", "train.data=" + train, "eval.val.data=" + eval},
                       sets)
        .recipe;
  };
  const Recipe equal = bytes("one", "two");
  ASSERT_TRUE(equal.byte_pixels());
  const std::vector<std::string> image{"image"};
  EXPECT_EQ(equal.byte_pixels()->fields, image);
  EXPECT_TRUE((equal.byte_pixels()->scale == data::ByteScale{0, 255, -1, 2}));
  EXPECT_EQ(equal.bytes_fields(device::Kind::cuda), image);
  EXPECT_TRUE(equal.bytes_fields(device::Kind::cpu).empty());
  auto pixels = [&](device::Kind kind) {
    for (const models::InputSpec& input :
         equal.engine(96, 1, kind).model->make_train_pass()->inputs())
      if (input.name == "image") return input.type;
    return device::DType::f64;
  };
  EXPECT_EQ(pixels(device::Kind::cuda), device::DType::u8);
  EXPECT_EQ(pixels(device::Kind::cpu), device::DType::f32);
  EXPECT_FALSE(bytes("one", "wide").byte_pixels());
  EXPECT_FALSE(bytes("one", "made").byte_pixels()) << "made-up pixels are floats";
  EXPECT_TRUE(bytes("one", "made").bytes_fields(device::Kind::cuda).empty());
}

TEST(Recipe, LengthOfARun) {
  EXPECT_EQ(CheckedDeck({}).recipe.total_steps(0), 10);
  auto steps = [](const std::string& total) {
    return CheckedDeck({"train." + total}, "", {"train.total_steps"}).recipe.total_steps(480);
  };
  EXPECT_EQ(steps("total_examples=1920"), 20);
  EXPECT_EQ(steps("total_epochs=3"), 15);
}

// The run has whole batches, until a data set would start again.
TEST(Recipe, ARunUntilItsInputEnds) {
  CheckedDeck checked({"train.total_steps=input"},
                      "[schedule.default]\nkind = \"cosine\"\nwarmup_fraction = 0.5\n");
  EXPECT_EQ(checked.problems(), "");
  const Recipe& recipe = checked.recipe;
  EXPECT_TRUE(recipe.train.until_input_ends());
  EXPECT_EQ(recipe.total_steps(480), 5);
  EXPECT_EQ(recipe.total_steps(575), 5) << "95 examples do not fill a batch";
  EXPECT_EQ(recipe.total_steps({960, 300}), 3) << "of a mixture, the set that ends first counts";
  EXPECT_EQ(recipe.total_steps(575, 192), 3) << "192 examples were left out";
  EXPECT_EQ(recipe.engine(575, 1).total_steps, 5) << "schedules span the whole input";
  const std::string problem =
      config_error([&] { checked.recipe.check_opened(checked.deck, 95, {}); });
  EXPECT_NE(problem.find("\"input\" ends after 95 examples, before the first batch of 96"),
            std::string::npos)
      << problem;
  for (const char* shuffle : {"classes", "stratified"})
    EXPECT_NE(CheckedDeck({"train.total_steps=input", fmt::format("train.shuffle={}", shuffle),
                           "train.classes_per_batch=2"})
                  .problems()
                  .find(fmt::format("\"{}\" draws samples forever", shuffle)),
              std::string::npos);
}

TEST(Recipe, StratifiedBatchesNeedWholeClasses) {
  auto problems = [](const std::string& classes) {
    return CheckedDeck({"train.shuffle=stratified", "train.classes_per_batch=" + classes})
        .problems();
  };
  EXPECT_EQ(problems("12"), "");
  EXPECT_NE(problems("0").find("missing; shuffle = \"stratified\" needs"), std::string::npos);
  EXPECT_NE(problems("7").find("train.global_batch = 96 is not divisible by 7"), std::string::npos);
  expect_problem(CheckedDeck({"train.shuffle=stratified", "train.classes_per_batch=2",
                              "train.mixture={ made = 1.0 }"},
                             "", {"train.data"}),
                 {"train.mixture", "whole batches of one data set"});
}

TEST(Recipe, KeysOfFurtherKinds) {
  const std::string rmsprop =
      "optimizer={ kind = \"rmsprop\", learning_rate = 1, alpha = 0.9, eps = 1e-6, momentum = 0.5, "
      "centered = true }";
  EXPECT_EQ(CheckedDeck({rmsprop, "data.made.classes=3", "data.made.pattern=separable"}).problems(),
            "");
  expect_problem(CheckedDeck({"optimizer={ kind = \"rmsprop\", learning_rate = 1, alpha = 1 }"}),
                 {"optimizer", "would ignore all gradients"});
  expect_problem(CheckedDeck({"data.made.pattern=separable"}),
                 {"data.made.pattern", "there are none: set classes"});
  const CheckedDeck after({"train.reduce_gradients=after_backward", "train.test_every=2"});
  EXPECT_EQ(after.problems(), "");
  EXPECT_TRUE(after.recipe.engine(960, 1).reduces_after);
  EXPECT_FALSE(CheckedDeck({}).recipe.engine(960, 1).reduces_after);
}

TEST(Recipe, OptionsOfTheEngine) {
  const step::EngineOptions plain = CheckedDeck({}).recipe.engine(960, 2);
  EXPECT_EQ(plain.micro_batch, 96) << "train.micro_batch = 0 sets no limit";
  EXPECT_EQ(plain.threads, 2);
  EXPECT_EQ(plain.operands, device::DType::f32);
  EXPECT_FALSE(plain.tf32 || plain.loss_scale || plain.ema || plain.graphs);
  EXPECT_EQ(plain.passes.size(), 1u);

  auto engine = [](const std::vector<std::string>& overrides, device::Kind kind) {
    CheckedDeck checked(overrides);
    EXPECT_EQ(checked.problems(), "");
    return checked.recipe.engine(960, 1, kind);
  };
  EXPECT_EQ(engine({"train.micro_batch=6"}, device::Kind::cpu).micro_batch, 6);
  EXPECT_EQ(engine({"precision.compute=bf16"}, device::Kind::cpu).operands, device::DType::bf16);
  const step::EngineOptions narrow =
      engine({"precision.compute=fp16", "run.device=cuda"}, device::Kind::cuda);
  EXPECT_EQ(narrow.operands, device::DType::f16);
  EXPECT_TRUE(narrow.loss_scale);
  const step::EngineOptions short_operands =
      engine({"precision.compute=tf32", "run.device=cuda"}, device::Kind::cuda);
  EXPECT_EQ(short_operands.operands, device::DType::f32);
  EXPECT_TRUE(short_operands.tf32);
  const std::vector<std::string> graphs = {"run.cuda_graph=on", "run.cuda_graph_limit=7",
                                           "run.device=auto"};
  EXPECT_EQ(engine(graphs, device::Kind::cuda).graphs, 7);
  EXPECT_EQ(engine(graphs, device::Kind::cpu).graphs, 0);
}

TEST(Recipe, ADeckHasOneModel) {
  const CheckedDeck checked({});
  const std::shared_ptr<const models::Model> made = checked.recipe.made_model();
  EXPECT_EQ(checked.recipe.made_model(), made);
  EXPECT_EQ(checked.recipe.engine(960, 1).model, made);
  Recipe other = checked.recipe;
  EXPECT_EQ(other.made_model(), made);
  other.memory.recompute = models::Recompute::block;
  EXPECT_NE(other.made_model(), made) << "a changed deck has another model";
  EXPECT_EQ(checked.recipe.made_model(), made);
}

TEST(Recipe, TheAverageIsMeasuredInSteps) {
  const CheckedDeck checked({},
                            "[ema]\ndecay = 0.5\nwarmup_fraction = 0.2\nevery_examples = 192\n");
  ASSERT_EQ(checked.problems(), "");
  const step::EngineOptions options = checked.recipe.engine(960, 1);
  ASSERT_TRUE(options.ema);
  EXPECT_EQ(options.ema->decay, 0.5);
  EXPECT_EQ(options.ema->warmup, 2);
  EXPECT_EQ(options.ema->every, 2);
}

}  // namespace
}  // namespace train
