// SPDX-License-Identifier: Apache-2.0
// Compares the parts of MFU and HFU with figures computed by hand.
#include "host/mfu.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "step/engine.hpp"
#include "train/recipe.hpp"

namespace host {
namespace {

TEST(Mfu, PeaksOfDataSheets) {
  struct Case {
    const char* name;
    double half, tf32, f32;
  };
  for (const Case& c :
       {Case{"NVIDIA A100-SXM4-40GB", 312, 156, 19.5},
        Case{"NVIDIA A100-SXM4-80GB", 312, 156, 19.5},
        Case{"NVIDIA A100-PCIE-40GB", 312, 156, 19.5},
        Case{"NVIDIA A100 80GB PCIe", 312, 156, 19.5},
        Case{"NVIDIA H100 80GB HBM3", 989.4, 494.7, 66.9}, Case{"NVIDIA H100 PCIe", 756, 378, 51.2},
        Case{"NVIDIA H100 NVL", 835.5, 417.5, 60}, Case{"NVIDIA H200", 989.4, 494.7, 66.9},
        Case{"NVIDIA H200 NVL", 835.5, 417.5, 60}, Case{"NVIDIA GH200 480GB", 989.4, 494.7, 66.9},
        Case{"NVIDIA B200", 2250, 1125, 75}, Case{"NVIDIA GB200", 2500, 1250, 80},
        Case{"NVIDIA L40S", 362, 183, 91.6}, Case{"NVIDIA L40", 181, 90.5, 90.5},
        Case{"NVIDIA L4", 121, 60, 30.3}}) {
    EXPECT_EQ(listed_peak_tflops(c.name, Compute::bf16), c.half) << c.name;
    EXPECT_EQ(listed_peak_tflops(c.name, Compute::fp16), c.half) << c.name;
    EXPECT_EQ(listed_peak_tflops(c.name, Compute::tf32), c.tf32) << c.name;
    EXPECT_EQ(listed_peak_tflops(c.name, Compute::f32), c.f32) << c.name;
  }
  for (const char* unknown : {"NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA GeForce RTX 4090",
                              "AMD H100", "", "NVIDIA", "NVIDIA A1000"})
    EXPECT_EQ(listed_peak_tflops(unknown, Compute::bf16), 0) << unknown;
}

TEST(Mfu, EveryGpuCountsOnce) {
  Peak two = peak_of_gpus({{"NVIDIA H200", "a"}, {"NVIDIA H200", "b"}, {"NVIDIA H200", "a"}},
                          Compute::bf16, 0);
  EXPECT_DOUBLE_EQ(two.flops, 2 * 989.4e12);
  EXPECT_EQ(two.text, "MFU against 1979 TFLOP/s (2 x NVIDIA H200, bf16 dense, data sheet)");
  EXPECT_DOUBLE_EQ(peak_of_gpus({{"NVIDIA H200", "a"}, {"NVIDIA L4", "b"}}, Compute::f32, 0).flops,
                   97.2e12);
  Peak unknown = peak_of_gpus({{"NVIDIA H200", "a"}, {"Abacus", "b"}}, Compute::bf16, 0);
  EXPECT_EQ(unknown.flops, 0);
  EXPECT_NE(unknown.text.find("profile.peak_tflops"), std::string::npos);
  EXPECT_DOUBLE_EQ(peak_of_gpus({{"Abacus", "b"}}, Compute::bf16, 0.5).flops, 0.5e12);
}

Recipe recipe_of(const std::string& deck) {
  Recipe recipe;
  config::Deck read({"deck.toml", deck, {}}, recipe);
  read.throw_if_any();
  return recipe;
}

// Width 768, 196 patches of 768 numbers, 64 tokens, 32,000 words. Forward, in multiply-adds x 2:
//   patches             2*196*768*768 = 231,211,008
//   encoder layer       24*196*768^2 + 4*196^2*768 = 2,892,546,048
//   decoder layer
//     self-attention    8*64*768^2 + 4*64^2*768 = 314,572,800
//     cross-attention   4*64*768^2 + 4*196*768^2 + 4*64*196*768 = 651,952,128
//     MLP               4*64*768*3072 = 603,979,776
//   words               2*64*768*32000 = 3,145,728,000
TEST(Mfu, FlopsOfThePublishedModel) {
  models::ModelOptions options = recipe_of(R"(
run = { dir = "unused" }
train = { data = "made", total_steps = 1, global_batch = 1 }
data = { made = { kind = "synthetic" } }
optimizer = { kind = "sgd", learning_rate = 1.0 }
[model]
kind = "cappa"
image_size = 224
vocab_size = 32_000
seq_len = 64
encoder = { patch = 16, depth = 12, width = 768, mlp = 3072, heads = 12 }
decoder = { depth = 6 }
)")
                                     .model;
  auto model = models::make_model(options, {});
  const int64_t patches = 231'211'008, layer = 314'572'800 + 651'952'128 + 603'979'776;
  const int64_t forward = patches + 12 * int64_t{2'892'546'048} + 6 * layer + 3'145'728'000;
  EXPECT_EQ(model->forward_flops(), forward);
  EXPECT_EQ(model->train_flops(), 3 * forward - patches);
  EXPECT_NEAR(double(model->train_flops()) / 1e9, 142.3, 0.05);
}

TEST(Mfu, MoreThanThePeakIsExplained) {
  EXPECT_EQ(utilisation_note(0.9, 1.0, 1e12, true), "");
  EXPECT_EQ(utilisation_note(NAN, NAN, 0, true), "");
  EXPECT_EQ(utilisation_note(1.2, 0.8, 1e12, true),
            "mfu=120.0% counts products of padding that this step did not compute; those that ran "
            "are hfu=80.0%");
  const std::string low = utilisation_note(1.387, 1.25, 80e9, true);
  EXPECT_NE(low.find("mfu=138.7% hfu=125.0%: this step computed at 100 GFLOP/s, more than the peak "
                     "of 80 GFLOP/s that was measured"),
            low.npos)
      << low;
  EXPECT_NE(utilisation_note(0.9, 1.25, 80e9, false).find("check profile.peak_tflops"),
            std::string::npos);
}

// The planned step of one example counts about train_flops, plus the recomputation of the blocks,
// which is at most their whole forward pass.
TEST(Mfu, RecomputingCountsInHardwareFlops) {
  auto flops = [](const std::string& recompute) {
    Recipe recipe = recipe_of(R"(
run = { dir = "unused" }
train = { data = "made", total_steps = 1, global_batch = 1 }
optimizer = { kind = "sgd", learning_rate = 1.0 }
[model]
kind = "cappa"
image_size = 16
vocab_size = 50
seq_len = 8
encoder = { patch = 8, depth = 2, width = 32, mlp = 48, heads = 2 }
decoder = { depth = 1 }
[data.made]
kind = "synthetic"
image_size = 16
seq_len = 8
vocab_size = 50
[memory]
recompute = ")" + recompute + "\"\n");
    auto world = comm::make_plan_comm(1);
    comm::Mesh mesh = comm::make_plan_mesh({1, 1}, *world);
    Engine engine(recipe.engine(1, 1), mesh, device::Kind::plan);
    engine.plan_step(1);
    return std::pair{hardware_flops(engine.queue()), engine.model().train_flops()};
  };
  const auto [plain, model] = flops("none");
  EXPECT_NEAR(double(plain), double(model), 0.02 * double(model));
  // The up projections take 2 x 4 patches x 32 x 48 in each of two layers, plus those of the
  // decoder's rows.
  EXPECT_GE(flops("mlp").first - plain, 2 * 2 * 4 * 32 * 48);
  EXPECT_GT(flops("block").first, flops("mlp").first);
  EXPECT_LT(flops("block").first - plain, model / 3);
}

}  // namespace
}  // namespace host
