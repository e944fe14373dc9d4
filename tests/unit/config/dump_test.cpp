// SPDX-License-Identifier: Apache-2.0
// Tests the resolved deck, the flat view, --describe and the digest.
#include "base/hash.hpp"
#include "recipe.hpp"

namespace {

using recipe::good;
using recipe::parse;
using recipe::problems;
using Lines = std::vector<std::string>;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Resolved, HasEveryKeyWithItsValue) {
  EXPECT_EQ(parse(good, {"optimizer.rule.0.frozen=true"})->deck->resolved(),
            R"(format = 1   # version of the deck's layout
env    = {}  # environment variables

[train]  # what is trained, and how long
data            = "coco"   # name of a [data.NAME] table
mixture         = {}       # weights of data sets
total_steps     = 1000     # [R] length of the run
global_batch    = 64       # examples per update
micro_batch     = 256      # [R] examples per pass
shuffle         = "exact"  # order of the examples
label_smoothing = 0.0      # share of the label given to all
start_steps     = []       # steps to trace

[model.encoder]  # image side
width = 768  # features
heads = 12   # attention heads

[model.decoder]  # text side
width = 768  # features
heads = 12   # attention heads

[optimizer]  # how it is trained
kind          = "adafactor"  # which optimizer
beta2_cap     = 0.999        # largest second-moment decay
momentum_type = "bf16"       # momentum storage
eps           = 1e-30        # added to the square
learning_rate = 0.001        # base learning rate

[[optimizer.rule]]  # first full match wins
match       = ".*/kernel"  # regular expression
decay_scale = 1.0          # multiplies the weight decay
frozen      = true         # never updated

[[optimizer.rule]]  # first full match wins
match       = ".*"   # regular expression
decay_scale = 0.0    # multiplies the weight decay
frozen      = false  # never updated

[schedule.default]  # multipliers of the update
kind  = "cosine"  # shape
scale = 1.0       # multiplies the shape

[data.coco]  # data sets
path       = "/data/coco.tar"  # where the files are
preprocess = ""                # chain of operations
fields     = { "a/b" = "x", image = "jpg" }  # our field = theirs
cache      = false             # keep decoded examples

[log]  # what is written
console_every_steps = 50              # [R] lines on the console
groups              = ["encoder/.*"]  # [R] parameter groups
levels              = []              # quantiles
flush_s             = 30              # between writes to disk
)");
}

// The resolved deck has the same values.
void expect_round_trip(const std::string& text, const std::vector<std::string>& overrides = {}) {
  auto first = parse(text, overrides);
  ASSERT_EQ(first->problems(), Lines{});
  auto second = parse(first->deck->resolved());
  EXPECT_EQ(second->problems(), Lines{}) << first->deck->resolved();
  EXPECT_EQ(second->deck->resolved(), first->deck->resolved());
  EXPECT_EQ(second->deck->flat(), first->deck->flat());
}

TEST(Resolved, ParsesBackToTheSame) {
  expect_round_trip(good);
  expect_round_trip(good, {"optimizer.kind=adamw", "optimizer.preconditioner.width=24",
                           "log.console_every_fraction=0.1", "train.total_examples=123456789012",
                           "log.keep_every_epochs=0.1", "train.cooldown_epochs=3"});
  // In nested lists, the tables of an element come before the next element.
  expect_round_trip(std::string(good) + R"([schedule.s]
kind = "composite"
part = [ { kind = "composite", part = [ { scale = 1 }, { scale = 2, warmup_steps = 0 } ] },
         { scale = 3 }, { kind = "composite" } ]
)");
  expect_round_trip(
      "format = 1\ntrain = { data = 'c', total_steps = 5, global_batch = 8 }\noptimizer = { kind = "
      "'sgd', rule = [] "
      "}\n");
}

TEST(Resolved, NestedListsStayInOrder) {
  auto r =
      parse(std::string(good) +
            "[schedule.s]\nkind = 'composite'\npart = [{ kind = 'composite', part = [{}] }, {}]\n");
  ASSERT_EQ(r->problems(), Lines{});
  std::string text = r->deck->resolved();
  size_t outer = text.find("[[schedule.s.part]]"), inner = text.find("[[schedule.s.part.part]]"),
         next = text.find("[[schedule.s.part]]", outer + 1);
  EXPECT_LT(outer, inner);
  EXPECT_LT(inner, next);
  EXPECT_NE(next, std::string::npos);
}

TEST(Resolved, NumbersKeepEveryBit) {
  for (const char* number :
       {"0.1", "1e-300", "5e-7", "123456789.123456789", "1e22", "3", "0x10", "1_000.5", "1e300"}) {
    std::string set = std::string("optimizer.learning_rate=") + number;
    expect_round_trip(good, {set});
    auto first = parse(good, {set});
    EXPECT_EQ(parse(first->deck->resolved())->root.optimizer.learning_rate,
              first->root.optimizer.learning_rate);
  }
  auto r = parse(good, {"train.global_batch=9223372036854775807"});
  EXPECT_EQ(parse(r->deck->resolved())->root.train.global_batch, INT64_MAX);
}

TEST(Resolved, TextKeepsEveryByte) {
  for (const char* toml :
       {R"("")", R"("a \"quoted\" word")", R"('back\slash')", R"("both ' and \" and \\")",
        R"("tab\there")", R"("two\nlines \"quoted\"")", R"("\nfirst line empty\n")", R"("\n'''\n")",
        R"("ends with\n'")", R"("\u0001\u007f\u001b[0m")", R"("carriage\r\nreturn")",
        R"("\u00e9 \U0001F600")", R"(" # no comment ")"}) {
    SCOPED_TRACE(toml);
    std::string set = std::string("data.coco.preprocess=") + toml;
    expect_round_trip(
        good, {set, std::string("env.A=") + toml, std::string("log.groups=[") + toml + "]"});
    auto first = parse(good, {set});
    EXPECT_EQ(parse(first->deck->resolved())->root.data["coco"].preprocess,
              first->root.data["coco"].preprocess);
  }
  // Long strings stay readable.
  auto r = parse(good, {R"x(data.coco.preprocess="decode | keep(\"image\")\n | resize(64)")x"});
  EXPECT_TRUE(contains(r->deck->resolved(),
                       "preprocess = '''\ndecode | keep(\"image\")\n | resize(64)'''"));
  auto quotes = parse(good, {R"x(data.coco.preprocess='keep("image")')x"});
  EXPECT_TRUE(contains(quotes->deck->resolved(), R"x(preprocess = 'keep("image")')x"));
}

TEST(Flat, HasEveryRow) {
  std::map<std::string, std::string> flat = parse(good)->deck->flat();
  EXPECT_EQ(flat.at("format"), "1");
  EXPECT_EQ(flat.at("train.total"), "1000 steps");
  EXPECT_EQ(flat.at("train.cooldown"), "unset");
  EXPECT_EQ(flat.at("train.shuffle"), "\"exact\"");
  EXPECT_EQ(flat.at("optimizer.rule[1].decay_scale"), "0.0");
  EXPECT_EQ(flat.at("data.coco.fields"), R"({ "a/b" = "x", image = "jpg" })");
  EXPECT_EQ(flat.at("log.console_every"), "50 steps");
  EXPECT_EQ(flat.at("schedule.default.warmup"), "unset");
  EXPECT_EQ(flat.size(), 38u);
}

TEST(Flat, OnResume) {
  auto r = parse(good);
  EXPECT_EQ(r->deck->on_resume("train.total"), config::OnResume::may_change);
  EXPECT_EQ(r->deck->on_resume("train.total_epochs"), config::OnResume::may_change);
  EXPECT_EQ(r->deck->on_resume("train.data"), config::OnResume::ask);
  EXPECT_EQ(r->deck->on_resume("format"), config::OnResume::never);
  EXPECT_EQ(r->deck->on_resume("optimizer.rule[1].match"), config::OnResume::ask);
  EXPECT_FALSE(r->deck->on_resume("optimizer.rule[2].match").has_value());
  EXPECT_FALSE(r->deck->on_resume("train").has_value());
  EXPECT_FALSE(r->deck->on_resume("nothing").has_value());
  for (const auto& [key, value] : r->deck->flat())
    EXPECT_TRUE(r->deck->on_resume(key).has_value()) << key;
}

TEST(Digest, IsOfTheBytesAndTheOverrides) {
  EXPECT_EQ(parse(good)->deck->digest(), base::sha256_hex(good));
  EXPECT_NE(parse(good)->deck->digest(), parse(std::string(good) + "\n")->deck->digest());
  EXPECT_NE(parse(good, {"log.flush_s=5"})->deck->digest(), parse(good)->deck->digest());
  EXPECT_NE(parse(good, {"a=1", "b=2"})->deck->digest(), parse(good, {"a=1b=2"})->deck->digest());
}

// ---- --describe

std::string describe(const std::string& key) {
  recipe::Root root;
  return config::describe([&root](config::Table& t) { root.bind(t); }, key);
}

TEST(Describe, OneTable) {
  EXPECT_EQ(describe("train"), R"([train]  what is trained, and how long
  train.data             string        required                             name of a [data.NAME] table
  train.mixture          number table  {}        > 0                        weights of data sets
  train.total_*          duration      required  > 0                    [R] length of the run
  train.cooldown_*       duration      unset                                length of the last phase
  train.global_batch     integer       required  >= 1 examples              examples per update
  train.micro_batch      integer       256       1..4096                [R] examples per pass
  train.shuffle          string        "exact"   none | exact | blocks      order of the examples
  train.label_smoothing  number        0.0       0..1                       share of the label given to all
  train.start_steps      integers      []        >= 0                       steps to trace
)");
}

TEST(Describe, KindsMarkTheirKeys) {
  EXPECT_EQ(describe("optimizer"), R"([optimizer]  how it is trained
  optimizer.kind           string  required  adafactor | adamw | sgd      which optimizer
  optimizer.beta2_cap      number  0.999     0..1                         largest second-moment decay {kind: adafactor}
  optimizer.momentum_type  string  "bf16"    bf16 | f32                   momentum storage {kind: adafactor, adamw}
  optimizer.eps            number  1e-30                                  added to the square {kind: adafactor}
  optimizer.beta2          number  0.95      0..1                         second-moment decay {kind: adamw}
  optimizer.eps            number  1e-08                                  added to the root {kind: adamw}
  optimizer.learning_rate  number  0.001     > 0                          base learning rate

[optimizer.preconditioner]  shape of the preconditioner
  optimizer.preconditioner.width  integer  768  >= 1      features {kind: adamw}
  optimizer.preconditioner.heads  integer  12   >= 1      attention heads {kind: adamw}

[[optimizer.rule]]  first full match wins
  optimizer.rule[].match        string   required        regular expression
  optimizer.rule[].decay_scale  number   1.0             multiplies the weight decay
  optimizer.rule[].frozen       boolean  false           never updated
)");
}

TEST(Describe, ATableThatContainsItself) {
  EXPECT_EQ(describe("schedule"), R"([schedule.NAME]  multipliers of the update
  schedule.NAME.kind      string    "cosine"  cosine | composite      shape
  schedule.NAME.warmup_*  duration  unset                             rise from 0 {kind: cosine}
  schedule.NAME.scale     number    1.0                               multiplies the shape

[[schedule.NAME.part]]  one after the other
  the keys of [schedule.NAME] again
)");
}

TEST(Describe, OneKey) {
  const std::string cache =
      "[data.NAME]  data sets\n  data.NAME.cache  boolean  false        keep decoded examples\n";
  for (const char* key : {"data.NAME.cache", "data.coco.cache", "cache", " cache "})
    EXPECT_EQ(describe(key), cache) << key;
  const std::string match =
      "[[optimizer.rule]]  first full match wins\n  optimizer.rule[].match  string  required       "
      " regular "
      "expression\n";
  for (const char* key : {"optimizer.rule[].match", "optimizer.rule[3].match",
                          "optimizer.rule.3.match", "optimizer.rule.match", "match"})
    EXPECT_EQ(describe(key), match) << key;
  const std::string total =
      "[train]  what is trained, and how long\n  train.total_*  duration  required  > 0  [R] "
      "length of the run\n";
  for (const char* key :
       {"train.total", "train.total_steps", "train.total_fraction", "total_epochs"})
    EXPECT_EQ(describe(key), total) << key;
  EXPECT_EQ(describe("env.NCCL_DEBUG"),
            "top of the deck\n  env  string table  {}        environment variables\n");
  EXPECT_TRUE(contains(describe("schedule.a.part[0].part[1].scale"), "schedule.NAME.scale"));
  EXPECT_TRUE(contains(describe("format"), "(never changes on resume)"));
}

TEST(Describe, Everything) {
  std::string text = describe("");
  for (const char* part :
       {"top of the deck\n  format", "\n\n[train]", "[model.decoder]", "[[optimizer.rule]]",
        "[schedule.NAME]", "[data.NAME]", "[log]", "log.console_every_*  duration  50 steps"})
    EXPECT_TRUE(contains(text, part)) << part;
}

TEST(Describe, UnknownKeysNameTheNearest) {
  auto refusal = [](const std::string& key) -> std::string {
    try {
      describe(key);
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::Exit::config);
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(refusal("train.globl_batch"),
            "--describe train.globl_batch: unknown key; did you mean train.global_batch?");
  EXPECT_EQ(refusal("train.totl_steps"),
            "--describe train.totl_steps: unknown key; did you mean train.total_steps?");
  EXPECT_EQ(refusal("globl_batch"),
            "--describe globl_batch: unknown key; did you mean global_batch?");
  EXPECT_EQ(refusal("optimizer.lr"),
            "--describe optimizer.lr: unknown key; did you mean optimizer.learning_rate?");
  EXPECT_EQ(refusal("lr"), "--describe lr: unknown key; did you mean learning_rate?");
  EXPECT_EQ(refusal("optimiser"), "--describe optimiser: unknown key; did you mean optimizer?");
  EXPECT_EQ(refusal("train.data.more"),
            "--describe train.data.more: unknown key; known at the top: format, env, train, model, "
            "optimizer, schedule, data, log");
  EXPECT_EQ(refusal(".."),
            "--describe ..: unknown key; known at the top: format, env, train, model, optimizer, "
            "schedule, data, log");
}

TEST(Describe, KindsAndOtherValuesByName) {
  EXPECT_EQ(describe("adamw"), R"([optimizer]  how it is trained
  optimizer.kind           string  required  adafactor | adamw | sgd      which optimizer
  optimizer.momentum_type  string  "bf16"    bf16 | f32                   momentum storage {kind: adafactor, adamw}
  optimizer.beta2          number  0.95      0..1                         second-moment decay {kind: adamw}
  optimizer.eps            number  1e-08                                  added to the root {kind: adamw}

[optimizer.preconditioner]  shape of the preconditioner
  optimizer.preconditioner.width  integer  768  >= 1      features {kind: adamw}
  optimizer.preconditioner.heads  integer  12   >= 1      attention heads {kind: adamw}
)");
  EXPECT_TRUE(contains(describe("composite"), "schedule.NAME.kind"));
  EXPECT_TRUE(contains(describe("blocks"), "train.shuffle"));
}

TEST(Describe, KeysThatShareAWord) {
  const std::string batch = describe("batch_size");
  EXPECT_TRUE(batch.starts_with("No key is called batch_size. Similar keys:\n\n[train]")) << batch;
  EXPECT_TRUE(contains(batch, "train.global_batch") && contains(batch, "train.micro_batch"));
  EXPECT_FALSE(contains(batch, "train.data"));
  EXPECT_TRUE(contains(describe("train.batches"), "train.global_batch"));
  EXPECT_TRUE(contains(describe("phase"), "train.cooldown_"));  // a word of its explanation
  EXPECT_EQ(config::describe([](config::Table& t) { recipe::Root().bind(t); }, "batch_size", false),
            "");
}

TEST(Describe, LeavesTheOptionsAlone) {
  recipe::Root root;
  root.optimizer.kind = "adamw";
  config::describe([&root](config::Table& t) { root.bind(t); }, "");
  EXPECT_EQ(root.optimizer.kind, "adamw");
  EXPECT_EQ(root.optimizer.options, nullptr);
  EXPECT_TRUE(root.optimizer.rules.empty());
  EXPECT_TRUE(root.data.empty());
  EXPECT_EQ(root.schedule.size(), 1u);
}

}  // namespace
