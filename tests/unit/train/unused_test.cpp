// SPDX-License-Identifier: Apache-2.0
// Tests which settings a job reports as unused: each with what turns it off, and with what uses it.
#include "train/unused.hpp"

#include <gtest/gtest.h>

#include "base/text.hpp"

namespace train {
namespace {

const std::string kPlainDeck = R"(
run   = { dir = "unused" }
train = { data = "made", total_steps = 10, global_batch = 96 }
[model]
kind       = "cappa"
image_size = 16
vocab_size = 50
seq_len    = 8
encoder    = { patch = 8, depth = 1, width = 32, mlp = 48, heads = 2 }
[optimizer]
kind          = "adafactor"
learning_rate = 1e-3
[data.made]
kind       = "synthetic"
image_size = 16
seq_len    = 8
vocab_size = 50
)";

using Keys = std::vector<std::string>;
using Find = std::vector<Unused> (*)(const Recipe& recipe);

// Returns the keys that are unused with these settings: "train.shuffle=none train.class_power=2".
Keys unused_with(Find find, const std::string& settings) {
  std::vector<std::string> overrides = base::split(settings, ' ');
  std::erase(overrides, "");
  Recipe recipe;
  const config::Deck deck(config::DeckSource{"deck.toml", kPlainDeck, overrides, {}}, recipe);
  EXPECT_EQ(base::join(deck.problems().lines, "\n"), "") << settings;
  Keys keys;
  for (const Unused& u : find(recipe)) {
    EXPECT_FALSE(u.why.empty()) << u.key;
    keys.push_back(u.key);
  }
  return keys;
}

struct Case {
  std::string setting;   // "run.cuda_graph_limit=3"
  Keys off, on;          // further settings with which it is unused, and used
  std::string key = "";  // "" = that of the setting

  std::string name() const { return key.empty() ? setting.substr(0, setting.find('=')) : key; }
};

const std::vector<Case> kCases = {
    {"run.cuda_graph_limit=3", {""}, {"run.cuda_graph=on"}},
    {"bench.op_steps=3", {"run.cuda_graph=on"}, {""}},
    {"mesh.gpu_timeout_s=9", {"mesh.gpu_exchange=mpi"}, {"", "mesh.gpu_exchange=nccl"}},
    {"mesh.bucket_mb=3", {"determinism.level=mesh"}, {""}},
    {"precision.loss_scale.init=8",
     {"", "precision.compute=bf16", "precision.compute=tf32"},
     {"precision.compute=fp16"},
     "precision.loss_scale"},
    {"train.shuffle_block=9",
     {"", "train.shuffle=none", "train.shuffle=classes"},
     {"train.shuffle=blocks"}},
    {"train.shuffle_window=9",
     {"", "train.shuffle=none", "train.shuffle=classes"},
     {"train.shuffle=blocks"}},
    {"train.class_power=0.5",
     {"", "train.shuffle=none", "train.shuffle=blocks"},
     {"train.shuffle=classes"}},
    {"determinism.slices=4", {""}, {"determinism.level=mesh"}},
    {"loader.max_bad_sample_fraction=0.5", {""}, {"loader.on_bad_sample=substitute"}},
    {"early_stop.metric=val/perplexity:min", {""}, {"early_stop.patience_evals=2"}},
    {"early_stop.min_change=1",
     {""},
     {"early_stop.patience_evals=2 early_stop.metric=val/perplexity:min"}},
    {"early_stop.not_before_fraction=0.5",
     {""},
     {"early_stop.patience_evals=2 early_stop.metric=val/perplexity:min"}},
    {"guard.max_skips=3",
     {"", "precision.compute=bf16"},
     {"guard.nonfinite=skip", "guard.nonfinite=rewind", "optimizer.drop_norm=2",
      "precision.compute=fp16"}},
    {"data.made.limit_seed=3",
     {""},
     {"data.made.limit=2", "data.made.skip=2", "data.made.fraction=0.5",
      "data.made.skip_fraction=0.5"}},
    {"data.made.limit_per=class",
     {""},
     {"data.made.limit=2", "data.made.skip=2", "data.made.fraction=0.5",
      "data.made.skip_fraction=0.5"}}};

TEST(Unused, SettingsThatOthersTurnOffAreNamed) {
  for (const Case& c : kCases) {
    for (const std::string& more : c.off) {
      EXPECT_EQ(unused_with(turned_off, c.setting + " " + more), Keys{c.name()})
          << c.setting << " with " << more;
      EXPECT_EQ(unused_with(turned_off, more), Keys{}) << "the default, with " << more;
    }
    for (const std::string& more : c.on)
      EXPECT_EQ(unused_with(turned_off, c.setting + " " + more), Keys{})
          << c.setting << " with " << more;
  }
}

TEST(Unused, SettingsOfGpusAreNamed) {
  EXPECT_EQ(unused_with(only_for_gpus, ""), Keys{});
  for (const std::string setting :
       {"run.gemm_search=off", "run.cuda_graph=on", "bench.op_steps=3", "mesh.gpu_exchange=mpi",
        "mesh.gpu_timeout_s=9", "profile.forbid_waits=true"})
    EXPECT_EQ(unused_with(only_for_gpus, setting), Keys{setting.substr(0, setting.find('='))});
}

TEST(Unused, SettingsOfCpusAreNamed) {
  EXPECT_EQ(unused_with(only_for_cpus, ""), Keys{});
  EXPECT_EQ(unused_with(only_for_cpus, "run.cpu=avx2"), Keys{"run.cpu"});
}

}  // namespace
}  // namespace train
