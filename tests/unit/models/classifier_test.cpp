// SPDX-License-Identifier: Apache-2.0
// Tests the classifier: gradients against differences for every pooling, loss against a naive
// reference, mixup, policies, bytes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/mix_images.hpp"
#include "models/classes/class_model.hpp"
#include "models/trunks/vit_options.hpp"
#include "one_rank.hpp"
#include "ranked.hpp"

namespace {

using device::DType;
using device::View;
using models::ClassifierOptions;
using models::ClassModel;
using Floats = std::vector<float>;

// Returns a small model whose sizes all differ.
ClassifierOptions small(const std::string& pool, const std::string& loss = "softmax",
                        double mixup = 0) {
  ClassifierOptions o;
  o.image_size = 16;
  o.num_classes = 7;
  o.loss = base::value_of(models::kClassLossNames, loss);
  o.mixup.p = mixup;
  auto trunk = std::make_shared<models::VitTrunkOptions>();
  trunk->size = {.variant = "", .patch = 8, .depth = 2, .width = 24, .mlp = 40, .heads = 3};
  trunk->pool = base::value_of(models::kPoolNames, pool);
  o.trunk = {"vit", trunk};
  return o;
}

// Adds to the trunk of `small` what ViTs of DINOv2 and CLIP have.
ClassifierOptions with_more(ClassifierOptions o) {
  auto& trunk = dynamic_cast<models::VitTrunkOptions&>(*o.trunk.options);
  trunk.size.layer_scale = 0.5;
  trunk.size.gelu = nn::Gelu::quick;
  trunk.registers = 3;
  trunk.pre_norm = true;
  return o;
}

struct Batch {
  Floats image;
  std::vector<int32_t> label;
  explicit Batch(int64_t examples) {
    base::Stream s(3, "made batch");
    for (int64_t i = 0; i < examples * 16 * 16 * 3; ++i)
      image.push_back(2 * s.sub(0).uniform(uint64_t(i)) - 1);
    for (int64_t b = 0; b < examples; ++b) label.push_back(int32_t(s.sub(1).bits(uint64_t(b)) % 7));
  }
  models::HostBatch host(int64_t first = 0) const {
    return {.features = {{"image", device::view(image.data(), int64_t(image.size()))},
                         {"label", device::view(label.data(), int64_t(label.size()))}},
            .examples = int64_t(label.size()),
            .first_position = first};
  }
};

class World {
 public:
  World(const ClassifierOptions& options, int64_t batch, int64_t slices = 1,
        const std::string& recompute = "none", DType operands = DType::f32)
      : model(options, {.recompute = base::value_of(models::kRecomputeNames, recompute)}),
        stores(model.parameters(), model.blocks(),
               {.batch = batch, .slices = slices, .operands = operands}),
        inputs(stores.make_inputs(model.inputs())),
        sums_(size_t(slices * model.sum_columns())) {
    stores.make_arena_for([&](nn::Context& train, nn::Context& forward) {
      train_->run(train, inputs, batch, sums());
      rank(forward);
    });
    stores.shake(5, "shake",
                 [](const std::string& path) { return path == "head/kernel" ? 0.3 : 0.1; });
  }
  View weight(const std::string& path) { return stores.weight(path); }
  void prepare(const Batch& batch, int64_t first = 0) {
    one_rank::copy_fields(batch.host(first), model.inputs(), inputs);
    train_->prepare(batch.host(first), base::Stream(9, "draws"), inputs);
  }
  // Computes the gradients of the mean loss, and returns the sums over all slices.
  std::vector<double> forward_backward() {
    stores.train([&](nn::Context& ctx) { train_->run(ctx, inputs, ctx.batch, sums()); });
    std::vector<double> all(size_t(model.sum_columns()));
    for (size_t i = 0; i < sums_.size(); ++i) all[i % all.size()] += sums_[i];
    return all;
  }
  double loss() { return forward_backward()[0] / double(stores.batch()); }
  // Returns the logits of images without mixup.
  std::vector<double> logits(const Batch& batch) {
    nn::Context ctx = stores.context(false);
    one_rank::copy_fields(batch.host(), {heads_.image}, inputs);
    const Floats out = rank(ctx).logits;
    return {out.begin(), out.end()};
  }
  Floats pre_logits(const Batch& batch) {
    const std::unique_ptr<models::EmbedPass> pass = model.make_embed_pass({"pre_logits"});
    Floats out(size_t(stores.batch() * pass->taps()[0].count()));
    nn::Context ctx = stores.context(false);
    one_rank::copy_fields(batch.host(), pass->inputs(), inputs);
    pass->run(ctx, inputs, {out.data()});
    return out;
  }
  std::vector<Floats> all_gradients() {
    std::vector<Floats> out;
    for (const shard::Parameter& p : stores.layout.parameters())
      out.push_back(stores.gradient_values(p.path));
    return out;
  }

  ClassModel model;
  one_rank::Stores stores;
  models::Inputs inputs;

 private:
  ranked::Numbers rank(nn::Context& ctx) {
    return ranked::run(ctx, heads_, inputs.at("image").device, inputs.at("label").device);
  }
  View sums() { return {sums_.data(), DType::f64, int64_t(sums_.size())}; }
  std::unique_ptr<models::TrainPass> train_ = model.make_train_pass();
  models::ClassLogits heads_ = model.logits({});
  std::vector<double> sums_;
};

// The derivative along the gradient is the gradient's norm. Each tensor is checked by fourth-order
// differences.
TEST(Classifier, GradientsAgainstDifferences) {
  for (auto [pool, loss, mixup] : {std::tuple{"gap", "softmax", 0.0},
                                   {"tok", "sigmoid", 0.3},
                                   {"map", "softmax", 0.3},
                                   {"gap", "smooth_l1", 0.3}}) {
    SCOPED_TRACE(fmt::format("{} {} mixup {}", pool, loss, mixup));
    ClassifierOptions o = small(pool, loss, mixup);
    o.label_smoothing = 0.1;
    if (std::string_view(pool) == "tok") o = with_more(o);
    World world(o, 4);
    world.prepare(Batch(4));
    world.forward_backward();
    const std::vector<Floats> gradients = world.all_gradients();
    for (size_t p = 0; p < gradients.size(); ++p) {
      const std::string& path = world.stores.layout.parameters()[p].path;
      const double norm = one_rank::norm_of(gradients[p]);
      if (path.ends_with("key/bias")) {
        EXPECT_LT(norm, 1e-6) << path << ": zero in exact arithmetic";
        continue;
      }
      ASSERT_GT(norm, 1e-4) << path;
      const double slope = one_rank::slope_along(gradients[p], world.weight(path), 0.004,
                                                 [&] { return world.loss(); });
      EXPECT_NEAR(slope, norm, 2e-3 * norm + 2e-5) << path;
    }
  }
}

// The loss of blended images and labels must follow from the logits of images that the test blends.
TEST(Classifier, LossIsThatOfBlendedImagesAndLabels) {
  for (const char* loss : {"softmax", "sigmoid"})
    for (double mixup : {0.0, 0.4}) {
      SCOPED_TRACE(fmt::format("{} mixup {}", loss, mixup));
      ClassifierOptions o = small("gap", loss, mixup);
      o.label_smoothing = 0.2;
      o.mixup.group = 4;
      World world(o, 8);
      const Batch batch(8);
      Batch blended = batch;
      std::vector<double> share(8, 1.0);
      for (int64_t b = 0; b < 8 && mixup > 0; ++b) {
        const float s = models::mixup_share(
            base::Stream(9, "draws").sub(base::stream_id("mixup")).sub(uint64_t(40 + b)), mixup);
        share[size_t(b)] = double(s);
        const int64_t other = b % 4 ? b - 1 : b + 3;
        for (int64_t i = 0; i < 768; ++i)
          blended.image[size_t(b * 768 + i)] =
              s * batch.image[size_t(b * 768 + i)] + (1 - s) * batch.image[size_t(other * 768 + i)];
      }
      const std::vector<double> x = world.logits(blended);
      double want = 0, hits = 0;
      for (size_t b = 0; b < 8; ++b) {
        const size_t other = size_t(b % 4 ? b - 1 : b + 3);
        auto smoothed = [&](int32_t label, size_t k) { return k == size_t(label) ? 0.8 : 0.2 / 6; };
        double total = 0;
        for (size_t k = 0; k < 7; ++k) total += std::exp(x[b * 7 + k]);
        size_t best = 0;
        for (size_t k = 0; k < 7; ++k) {
          const double z = x[b * 7 + k];
          const double q = share[b] * smoothed(batch.label[b], k) +
                           (1 - share[b]) * smoothed(batch.label[other], k);
          const double p =
              std::string_view(loss) == "softmax" ? std::exp(z) / total : 1 / (1 + std::exp(-z));
          want -= q * std::log(p) +
                  (std::string_view(loss) == "softmax" ? 0 : (1 - q) * std::log(1 - p));
          if (z > x[b * 7 + best]) best = k;
        }
        hits += best == size_t(batch.label[b]);
      }
      world.prepare(batch, 40);
      const std::vector<double> sums = world.forward_backward();
      EXPECT_NEAR(sums[0], want, 2e-5 * want);
      const std::vector<models::Measure> measures = world.model.measures();
      EXPECT_EQ(measures[0].name, "loss");
      EXPECT_EQ(measures[1].value(sums.data(), 8), hits / 8);
    }
}

// For Beta(p, p), the mean and variance of the larger share's distance from 1/2 follow from those
// of Beta itself.
TEST(Classifier, SharesAreOfTheBetaDistribution) {
  for (double p : {0.1, 0.2, 0.8, 1.0, 5.0}) {
    const int n = 40000;
    double square = 0, least = 1;
    for (int i = 0; i < n; ++i) {
      const double s = double(models::mixup_share(base::Stream(1, "shares").sub(uint64_t(i)), p));
      ASSERT_TRUE(s >= 0.5 && s <= 1) << s;
      square += (s - 0.5) * (s - 0.5) / n;
      least = std::min(least, s);
    }
    // The variance of Beta(p, p) is 1 / (4 (2p + 1)).
    EXPECT_NEAR(square, 1 / (4 * (2 * p + 1)), 0.004) << p;
    EXPECT_LT(least, 0.51) << p;
  }
  EXPECT_EQ(models::mixup_share(base::Stream(1, "x"), 0.2),
            models::mixup_share(base::Stream(1, "x"), 0.2));
}

TEST(Classifier, RecomputeAndSlicesChangeNoBit) {
  for (const char* pool : {"gap", "map", "tok"}) {
    std::vector<Floats> first;
    for (const char* recompute : {"none", "gelu", "mlp", "block"}) {
      ClassifierOptions o = small(pool, "softmax", 0.3);
      dynamic_cast<models::VitTrunkOptions&>(*o.trunk.options).size.dropout = 0.2;
      if (std::string_view(pool) == "tok") o = with_more(o);
      World world(o, 4, 2, recompute);
      world.prepare(Batch(4));
      const double loss = world.loss();
      std::vector<Floats> all = world.all_gradients();
      all.push_back({float(loss)});
      if (first.empty()) first = all;
      for (size_t i = 0; i < all.size(); ++i)
        EXPECT_EQ(std::memcmp(all[i].data(), first[i].data(), all[i].size() * 4), 0)
            << pool << " " << recompute << " " << i;
    }
  }
}

TEST(Classifier, Bf16StaysNearF32) {
  for (const char* pool : {"gap", "map", "tok"}) {
    ClassifierOptions o = small(pool, "softmax", 0.3);
    if (std::string_view(pool) == "tok") o = with_more(o);
    World wide(o, 4), narrow(o, 4, 1, "none", DType::bf16);
    wide.prepare(Batch(4));
    narrow.prepare(Batch(4));
    narrow.stores.weights.publish();
    const double loss = wide.loss();
    EXPECT_NEAR(narrow.loss(), loss, 0.02 * loss) << pool;
    const std::vector<Floats> a = wide.all_gradients(), b = narrow.all_gradients();
    double dot = 0, square_a = 0, square_b = 0;
    for (size_t i = 0; i < a.size(); ++i)
      for (size_t k = 0; k < a[i].size(); ++k) {
        dot += double(a[i][k]) * double(b[i][k]);
        square_a += double(a[i][k]) * double(a[i][k]);
        square_b += double(b[i][k]) * double(b[i][k]);
      }
    EXPECT_GT(dot / std::sqrt(square_a * square_b), 0.999) << pool;
  }
}

// Parameters have the names and shapes of big_vision's ViT, under "encoder/" except for the head.
// The vector before the head must give the logits that the classifier gives.
TEST(Classifier, EmbedsImagesAsItsHeadSeesThem) {
  for (const char* pool : {"gap", "tok", "map"}) {
    World world(small(pool), 4);
    const Batch batch(4);
    const Floats features = world.pre_logits(batch);
    const std::vector<double> logits = world.logits(batch);
    const View kernel = world.weight("head/kernel"), bias = world.weight("head/bias");
    for (int64_t b = 0; b < 4; ++b)
      for (int64_t c = 0; c < 7; ++c) {
        double sum = double(bias.f32()[c]);
        for (int64_t i = 0; i < 24; ++i)
          sum += double(features[size_t(b * 24 + i)]) * double(kernel.f32()[i * 7 + c]);
        EXPECT_NEAR(sum, logits[size_t(b * 7 + c)], 1e-5) << pool << ", image " << b;
      }
    EXPECT_EQ(world.model.taps()[1].shape[0], std::string(pool) == "tok" ? 5 : 4)
        << "the class token is one of the tokens";
  }
  EXPECT_EQ(World(with_more(small("tok")), 4).model.taps()[1].shape[0], 8);
}

// With factors of 1, a ViT with layer scale is one without. Registers change what the class token
// sees.
TEST(Classifier, LayerScaleOfOneIsNone) {
  const Batch batch(4);
  ClassifierOptions o = small("tok");
  auto& trunk = dynamic_cast<models::VitTrunkOptions&>(*o.trunk.options);
  auto features = [&] {
    World world(o, 4);
    for (const shard::Parameter& p : world.stores.layout.parameters()) {
      const View w = world.weight(p.path);
      for (int64_t i = 0; i < w.count; ++i)
        w.f32()[i] = p.path.find("LayerScale") != p.path.npos
                         ? 1
                         : 0.1f * float(base::Stream(1, p.path).normal(uint64_t(i)));
    }
    return world.pre_logits(batch);
  };
  const Floats without = features();
  trunk.size.layer_scale = 1e-5;
  const Floats with = features();
  for (size_t i = 0; i < with.size(); ++i) EXPECT_NEAR(with[i], without[i], 1e-5);
  trunk.registers = 3;
  double distance = 0;
  const Floats more = features();
  for (size_t i = 0; i < more.size(); ++i) distance += std::abs(double(more[i]) - without[i]);
  EXPECT_GT(distance, 1e-3);
}

TEST(Classifier, ParametersAreBigVisions) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const char* pool : {"map", "tok"})
    for (const shard::Parameter& p : ClassModel(small(pool), {}).parameters())
      shapes[p.path] = p.shape;
  using Shape = std::vector<int64_t>;
  const std::string map = "encoder/MAPHead_0/", attention = map + "MultiHeadDotProductAttention_0/";
  for (const auto& [path, shape] : std::map<std::string, Shape>{
           {"encoder/cls", {1, 1, 24}},
           {"encoder/embedding/kernel", {8, 8, 3, 24}},
           {"encoder/pos_embedding", {1, 4, 24}},
           {"encoder/Transformer/encoderblock_1/MultiHeadDotProductAttention_0/query/kernel",
            {24, 3, 8}},
           {"encoder/Transformer/encoder_norm/scale", {24}},
           {map + "probe", {1, 1, 24}},
           {attention + "key/kernel", {24, 3, 8}},
           {attention + "out/kernel", {3, 8, 24}},
           {map + "LayerNorm_0/scale", {24}},
           {map + "MlpBlock_0/Dense_0/kernel", {24, 40}},
           {"head/kernel", {24, 7}},
           {"head/bias", {7}}})
    EXPECT_EQ(shapes[path], shape) << path;
}

// Checkpoints hold sums of an epoch by column, which later versions must find.
TEST(Classifier, ColumnsOfMeasuresStayInPlace) {
  ClassifierOptions o = small("gap");
  std::vector<models::Measure> measures = ClassModel(o, {}).measures();
  EXPECT_EQ(measures[0].column, 0);
  EXPECT_EQ(measures[1].column, 3);
  o.ignores_unknown = true;
  measures = ClassModel(o, {}).measures();
  for (const models::Measure& m : measures) EXPECT_EQ(m.divided_by, 5);
}

TEST(Classifier, BeginsAtTheUniformLoss) {
  ClassifierOptions o = small("gap");
  o.label_smoothing = 0.1;
  World world(o, 4);
  world.stores.weights.initialise(1);
  world.prepare(Batch(4));
  EXPECT_NEAR(world.loss(), std::log(7.0), 1e-6);
  EXPECT_EQ(world.model.uniform_loss(), std::log(7.0));
  o = small("tok", "sigmoid");
  o.init_head_bias = -std::log(6.0);
  World sigmoid(o, 4);
  sigmoid.stores.weights.initialise(1);
  sigmoid.prepare(Batch(4));
  EXPECT_NEAR(sigmoid.loss(), sigmoid.model.uniform_loss(), 1e-6)
      << "each class has the probability 1/7";
}

TEST(Classifier, RefusesLabelsAndGroupsThatDoNotFit) {
  auto refused = [](base::Exit code, const char* part, auto run) {
    try {
      run();
      ADD_FAILURE() << part;
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), code);
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  World world(small("gap"), 4);
  for (int32_t label : {-1, 7}) {
    Batch batch(4);
    batch.label[2] = label;
    refused(base::Exit::data, "position 12 is not in [0, 7) (model.num_classes)",
            [&] { world.prepare(batch, 10); });
  }
  ClassifierOptions o = small("gap", "softmax", 0.2);
  o.mixup.group = 4;
  refused(base::Exit::mesh, "model.mixup.group = 4 does not divide the 6 examples",
          [&] { World(o, 6); });
}

}  // namespace
