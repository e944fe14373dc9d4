// SPDX-License-Identifier: Apache-2.0
// FLOPs of the model and of what runs, against figures worked out by hand.
#include <gtest/gtest.h>

#include "host/mfu.hpp"
#include "step/engine.hpp"
#include "train/recipe.hpp"

namespace train {
namespace {

Recipe recipe_of(const std::string& deck) {
  Recipe recipe;
  config::Deck read({"deck.toml", deck, {}}, recipe);
  read.throw_if_any();
  return recipe;
}

// Width 768, 196 patches of 768 numbers, 64 tokens, 32,000 words. Forward, in multiply-adds x 2:
//   patches                         2*196*768*768 = 231,211,008
//   a layer of the encoder          24*196*768^2 + 4*196^2*768 = 2,892,546,048
//   a layer of the decoder
//     self-attention                8*64*768^2 + 4*64^2*768 = 314,572,800
//     cross-attention               4*64*768^2 + 4*196*768^2 + 4*64*196*768 = 651,952,128
//     MLP                           4*64*768*3072 = 603,979,776
//   words                           2*64*768*32000 = 3,145,728,000
TEST(Flops, FlopsOfThePublishedModel) {
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

// The planned FLOPs of a step of one example are about train_flops plus what the blocks recompute,
// at most their whole forward pass.
TEST(Flops, RecomputingCountsInHardwareFlops) {
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
    step::Engine engine(recipe.engine(1, 1), mesh, device::Kind::plan);
    engine.plan_step(1);
    return std::pair{host::hardware_flops(engine.queue()), engine.model().train_flops()};
  };
  const auto [plain, model] = flops("none");
  EXPECT_NEAR(double(plain), double(model), 0.02 * double(model));
  // The up projections: 2 x 4 patches x 32 x 48 in each of two layers, and those of the decoder's
  // rows.
  EXPECT_GE(flops("mlp").first - plain, 2 * 2 * 4 * 32 * 48);
  EXPECT_GT(flops("block").first, flops("mlp").first);
  EXPECT_LT(flops("block").first - plain, model / 3);
}

}  // namespace
}  // namespace train
