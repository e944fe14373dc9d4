// SPDX-License-Identifier: Apache-2.0
// Tests linear probes on a frozen ResNet: pools, losses and gradients against naive ones made from
// the trunk's features, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "models/classes/class_model.hpp"
#include "one_rank.hpp"
#include "ranked.hpp"

namespace {

using device::DType;
using device::View;
using Floats = std::vector<float>;

constexpr int64_t kSize = 32, kProbeClasses = 5, kProbeBatch = 6;

const char* const kDeck = R"([model]
kind = "linear_probe"
image_size = 32
num_classes = 5
top = [1, 2]
trunk = { kind = "resnet", depth = 18, width = 4 }
[[model.probe]]
tap = "conv1"
pool = 5
pool_stride = 4
pool_padding = 2
head = { kind = "mlp", layers = [5] }
[[model.probe]]
tap = "res3"
pool = 2
head = { kind = "eval_mlp", channels = 8, layers = [5] }
[[model.probe]]
tap = "flatten"
name = "top"
head = { kind = "mlp", layers = [5] }
)";

const std::vector<std::string> kTurned = {"top", "conv1"};

struct Root {
  models::ModelOptions model;
  void bind(config::Table& t) { t.table("model", model, ""); }
};

std::unique_ptr<models::Model> made(const std::string& text) {
  Root root;
  config::Deck({"deck.toml", text, {}}, root).throw_if_any();
  return models::make_model(root.model, {});
}

class ProbeWorld {
 public:
  explicit ProbeWorld(int64_t slices = 1)
      : owner_(made(kDeck)),
        model(dynamic_cast<models::ClassModel&>(*owner_)),
        stores(model.parameters(), model.blocks(),
               {.batch = kProbeBatch, .slices = slices, .threads = 2}),
        states(stores.fabric()),
        group_(stores.mesh(), slices),
        sums_(size_t(slices * model.sum_columns())) {
    base::Stream s(3, "made batch");
    for (int64_t i = 0; i < kProbeBatch * kSize * kSize * 3; ++i)
      image_.push_back(2 * s.sub(0).uniform(uint64_t(i)) - 1);
    for (int64_t b = 0; b < kProbeBatch; ++b)
      label.push_back(int32_t(s.sub(1).bits(uint64_t(b)) % uint32_t(kProbeClasses)));
    inputs_["image"] = device::view(image_.data(), int64_t(image_.size()));
    inputs_["label"] = device::view(label.data(), kProbeBatch);
    stores.make_arena_for([&](nn::Context& train, nn::Context& forward) {
      run_train_pass(train);
      for (const auto& heads : {std::vector<std::string>(), kTurned}) rank(forward, heads);
      embed_->plan(forward, inputs_);
    });
    stores.weights.initialise(5);
    stores.weights.publish();
  }
  View weight(const std::string& path) { return stores.weight(path); }
  Floats gradient(const std::string& path) const { return stores.gradient_values(path); }
  void train() {
    states.begin_step(stores.weights);
    stores.train([&](nn::Context& ctx) { run_train_pass(ctx); });
  }
  // Returns the values of the taps conv1 and flatten.
  std::vector<Floats> embed() {
    std::vector<Floats> out;
    std::vector<float*> places;
    for (const models::Tap& tap : embed_->taps())
      out.emplace_back(size_t(kProbeBatch * tap.count()));
    for (Floats& f : out) places.push_back(f.data());
    nn::Context ctx = stores.context(false);
    embed_->run(ctx, inputs_, places);
    return out;
  }
  // Ranks classes with these probes; none: with all.
  ranked::Numbers classify(const std::vector<std::string>& heads = {}) {
    nn::Context ctx = stores.context(false);
    return rank(ctx, heads);
  }
  double measure(const std::string& name) const {
    std::vector<double> all(size_t(model.sum_columns()));
    for (size_t i = 0; i < sums_.size(); ++i) all[i % all.size()] += sums_[i];
    for (const models::Measure& m : model.measures())
      if (m.name == name) return m.value(all.data(), kProbeBatch);
    ADD_FAILURE() << "no measure " << name;
    return NAN;
  }

 private:
  ranked::Numbers rank(nn::Context& ctx, const std::vector<std::string>& heads) {
    return ranked::run(ctx, model.logits(heads), inputs_.at("image").device,
                       inputs_.at("label").device);
  }
  void run_train_pass(nn::Context& ctx) {
    ctx.group = &group_;
    ctx.states = &states;
    train_->run(ctx, inputs_, kProbeBatch, {sums_.data(), DType::f64, int64_t(sums_.size())});
  }
  std::unique_ptr<models::Model> owner_;

 public:
  models::ClassModel& model;

 private:
  std::unique_ptr<models::TrainPass> train_ = model.make_train_pass();
  std::unique_ptr<models::EmbedPass> embed_ = model.make_embed_pass({"conv1", "flatten"});

 public:
  one_rank::Stores stores;
  shard::StateStore states;
  std::vector<int32_t> label;

 private:
  nn::BatchGroup group_;
  std::vector<double> sums_;
  models::Inputs inputs_;
  Floats image_;
};

// Returns the means of windows of 5 x 5 values at a distance of 4, with 2 zeros around, of one
// image [16, 16, 4].
std::vector<double> pooled(const float* x) {
  std::vector<double> out;
  for (int64_t r = -2; r + 5 <= 18; r += 4)
    for (int64_t c = -2; c + 5 <= 18; c += 4)
      for (int64_t k = 0; k < 4; ++k) {
        double sum = 0;
        for (int64_t i = std::max<int64_t>(r, 0); i < std::min<int64_t>(r + 5, 16); ++i)
          for (int64_t j = std::max<int64_t>(c, 0); j < std::min<int64_t>(c + 5, 16); ++j)
            sum += double(x[(i * 16 + j) * 4 + k]);
        out.push_back(sum / 25);
      }
  return out;
}

// Mean loss and gradient of a linear classifier, and the examples whose class is among the first.
struct Naive {
  double loss = 0;
  std::vector<double> gradient;
  double first[2] = {};
};
Naive classifier(const std::vector<std::vector<double>>& x, const View& w, const View& bias,
                 const std::vector<int32_t>& labels) {
  const size_t in = x[0].size(), n = x.size();
  Naive out{0, std::vector<double>(size_t(kProbeClasses) * in), {}};
  for (size_t i = 0; i < n; ++i) {
    std::vector<double> scores;
    for (size_t c = 0; c < size_t(kProbeClasses); ++c) {
      double s = double(bias.f32()[c]);
      for (size_t f = 0; f < in; ++f) s += double(w.f32()[c * in + f]) * x[i][f];
      scores.push_back(s);
    }
    double sum = 0;
    for (double s : scores) sum += std::exp(s);
    const auto own = size_t(labels[i]);
    out.loss += (std::log(sum) - scores[own]) / double(n);
    int64_t rank = 0;
    for (size_t c = 0; c < scores.size(); ++c) {
      rank += scores[c] > scores[own];
      const double d = std::exp(scores[c]) / sum - double(c == own);
      for (size_t f = 0; f < in; ++f) out.gradient[c * in + f] += d * x[i][f] / double(n);
    }
    out.first[0] += double(rank < 1) / double(n);
    out.first[1] += double(rank < 2) / double(n);
  }
  return out;
}

TEST(LinearProbes, AreClassifiersOnPooledTaps) {
  ProbeWorld world;
  world.train();
  const std::vector<Floats> taps = world.embed();
  std::vector<std::vector<double>> conv, flat;
  for (int64_t b = 0; b < kProbeBatch; ++b) {
    conv.push_back(pooled(taps[0].data() + b * 16 * 16 * 4));
    flat.emplace_back(taps[1].begin() + b * 32, taps[1].begin() + (b + 1) * 32);
  }
  double total = world.measure("res3_loss");
  for (const auto& [x, name, head] :
       {std::tuple{&conv, "conv1", "head"}, {&flat, "top", "head2"}}) {
    const std::string path = std::string(head) + "/clf.0.";
    const Naive want =
        classifier(*x, world.weight(path + "weight"), world.weight(path + "bias"), world.label);
    EXPECT_NEAR(world.measure(std::string(name) + "_loss"), want.loss, 1e-5);
    EXPECT_EQ(world.measure(std::string(name) + "_top1"), want.first[0]);
    EXPECT_EQ(world.measure(std::string(name) + "_top2"), want.first[1]);
    const Floats got = world.gradient(path + "weight");
    ASSERT_EQ(got.size(), want.gradient.size());
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(double(got[i]), want.gradient[i], 2e-6) << i;
    total += want.loss;
  }
  EXPECT_NEAR(world.measure("loss"), total, 1e-5);
}

TEST(LinearProbes, LeaveTheTrunkAsItIs) {
  ProbeWorld world;
  for (const shard::Parameter& p : world.stores.layout.parameters()) {
    const bool head = p.path.starts_with("head");
    const bool running = p.path.find("running_") != std::string::npos ||
                         p.path.find("num_batches") != std::string::npos;
    EXPECT_EQ(p.trained(), head && !running) << p.path;
  }
  world.train();
  auto next_differs = [&](const std::string& path) {
    const int number = world.stores.layout.find(path);
    const View now = world.stores.weights.weight(number), next = world.states.next(number);
    return !std::equal(now.f32(), now.f32() + now.count, next.f32());
  };
  EXPECT_FALSE(next_differs("trunk/layer2.0.bn1.running_mean"));
  EXPECT_TRUE(next_differs("head1/channel_bn.running_mean"));
}

TEST(LinearProbes, SlicesGiveTheSameSums) {
  ProbeWorld one, two(2);
  one.train();
  two.train();
  for (const models::Measure& m : one.model.measures())
    EXPECT_NEAR(one.measure(m.name), two.measure(m.name), 1e-6) << m.name;
  const Floats a = one.gradient("head1/clf.clf.0.weight"),
               b = two.gradient("head1/clf.clf.0.weight");
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-6);
}

// In an evaluation the batch norms of heads use running statistics, which are 0 and 1 here.
TEST(LinearProbes, AreEvaluatedTogether) {
  ProbeWorld world;
  world.train();
  const auto [loss, rank, logits] = world.classify();
  for (size_t p : {size_t{0}, size_t{2}}) {
    double mean = 0, first = 0;
    for (size_t i = 0; i < size_t(kProbeBatch); ++i) {
      mean += loss[p * kProbeBatch + i] / kProbeBatch;
      first += double(rank[p * kProbeBatch + i] == 0) / kProbeBatch;
    }
    EXPECT_NEAR(mean, world.measure(p ? "top_loss" : "conv1_loss"), 1e-6);
    EXPECT_NEAR(first, world.measure(p ? "top_top1" : "conv1_top1"), 1e-12);
  }
  for (double r : rank) EXPECT_TRUE(r >= 0 && r < kProbeClasses);
  EXPECT_EQ(world.model.head_names(), (std::vector<std::string>{"conv1", "res3", "top"}));
}

TEST(LinearProbes, AreEvaluatedInTheOrderAskedFor) {
  ProbeWorld world;
  world.train();
  const Floats all = world.classify().logits, turned = world.classify(kTurned).logits,
               one = world.classify({"res3"}).logits;
  const auto count = size_t(kProbeBatch * kProbeClasses);
  ASSERT_EQ(all.size(), 3 * count);
  ASSERT_EQ(turned.size(), 2 * count);
  ASSERT_EQ(one.size(), count);
  for (size_t i = 0; i < count; ++i) {
    EXPECT_EQ(turned[i], all[2 * count + i]);
    EXPECT_EQ(turned[count + i], all[i]);
    EXPECT_EQ(one[i], all[count + i]);
  }
  EXPECT_NE(all[0], all[2 * count]);
}

TEST(LinearProbes, RefuseWhatDoesNotFit) {
  auto refused = [&](const std::string& from, const std::string& to,
                     const std::vector<std::string>& parts) {
    std::string deck = kDeck;
    deck.replace(deck.find(from), from.size(), to);
    try {
      made(deck);
      ADD_FAILURE() << to << " was accepted";
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::Exit::config);
      for (const std::string& part : parts)
        EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  refused("tap = \"res3\"", "tap = \"rse3\"",
          {"model.probe \"rse3\"", "no tap", "res3", "conv1", "flatten"});
  refused("tap = \"flatten\"", "pool = 2\ntap = \"flatten\"", {"pool = 2", "flatten"});
  refused("pool = 2", "pool = 9", {"pool = 9", "res3", "4 x 4"});
  refused("channels = 8", "channels = 16", {"channels = 16", "res3", "8"});
  refused("layers = [5]", "layers = [4]", {"model.num_classes = 5", "4"});
  refused("pool_padding = 2", "pool_padding = 3", {"pool_padding"});
  refused("name = \"top\"", "name = \"res3\"", {"two probes are named \"res3\""});
  refused("top = [1, 2]", "top = []", {"top"});
}

}  // namespace
