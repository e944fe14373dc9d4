// SPDX-License-Identifier: Apache-2.0
// Tests what classifiers are trained to (ssl.md 3.3): labels and targets that are not known, the
// two kinds of smoothing, mixes, gradients against differences, and refusals.
#include "models/classes/class_objective.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>

#include "one_rank.hpp"

namespace {

using device::View;
using kernels::ClassLoss;
using models::ClassLossOptions;
using models::ClassObjective;
using models::Mix;
using models::Mixing;
using models::MixupOptions;
using Floats = std::vector<float>;
using Labels = std::vector<int32_t>;

constexpr int64_t kBatch = 6, kClasses = 5;

// Runs an objective on a batch of logits, as the only pass of its step.
class Rig {
 public:
  explicit Rig(const ClassLossOptions& options, const MixupOptions& mixup = {}, int64_t slices = 1)
      : objective_(options, kClasses),
        mixing_(mixup, 8, 8),
        stores_({{.path = "w", .shape = {1}, .init = {}}}, {"block"},
                {.batch = kBatch, .slices = slices}),
        group_(stores_.mesh(), slices) {
    stores_.make_arena(1 << 16);
    specs_ = objective_.inputs(mixing_.on());
    for (const models::InputSpec& s : mixing_.inputs()) specs_.push_back(s);
    inputs_ = stores_.make_inputs(specs_);
  }
  void prepare(const Labels& labels) {
    prepare("label", device::view(labels.data(), int64_t(labels.size())));
  }
  void prepare_targets(const Floats& targets) {
    prepare("shown", device::view(targets.data(), int64_t(targets.size())));
  }
  struct Result {
    double loss = 0;  // of the step
    Floats gradient, losses, hits;
  };
  Result run(const Floats& logits, int64_t global_batch = kBatch) {
    nn::Context ctx = stores_.context(true);
    ctx.gradients = nullptr;
    ctx.group = &group_;
    Result out{.gradient = logits, .losses = Floats(kBatch), .hits = Floats(kBatch)};
    objective_.check_pass(ctx, global_batch);
    device::Arena::Scope scope(ctx.arena);
    objective_.run(ctx, inputs_, device::view(out.gradient.data(), kBatch * kClasses), global_batch,
                   device::view(out.losses.data(), kBatch), device::view(out.hits.data(), kBatch));
    double sum = 0, rows = 0;
    for (int64_t b = 0; b < kBatch; ++b) {
      sum += double(out.losses[size_t(b)]);
      rows += objective_.counts_labels() ? double(inputs_.at("known").device.f32()[b]) : 1;
    }
    const bool of_known = measures()[0].divided_by != models::Measure::kExamples;
    out.loss = sum / (of_known ? rows : double(global_batch));
    return out;
  }
  models::Inputs& inputs() { return inputs_; }
  std::vector<models::Measure> measures() const { return objective_.measures(1, 2); }

 private:
  void prepare(const std::string& field, View view) {
    const models::HostBatch batch{
        .features = {{field, view}}, .examples = kBatch, .first_position = 10};
    const std::vector<Mix> mixes = mixing_.draw(kBatch, 10, base::Stream(4, "step"));
    one_rank::copy_fields(batch, specs_, inputs_);
    mixing_.fill(mixes, inputs_);
    objective_.prepare(batch, mixes, mixing_, inputs_);
  }

  ClassObjective objective_;
  Mixing mixing_;
  one_rank::Stores stores_;
  nn::BatchGroup group_;
  std::vector<models::InputSpec> specs_;
  models::Inputs inputs_;
};

Floats logits() {
  Floats out;
  for (int64_t i = 0; i < kBatch * kClasses; ++i)
    out.push_back(2 * float(base::Stream(7, "logits").normal(uint64_t(i))));
  return out;
}

std::vector<double> float_log_softmax(const Floats& x, int64_t row) {
  double sum = 0;
  for (int64_t c = 0; c < kClasses; ++c) sum += std::exp(double(x[size_t(row * kClasses + c)]));
  std::vector<double> out;
  for (int64_t c = 0; c < kClasses; ++c)
    out.push_back(double(x[size_t(row * kClasses + c)]) - std::log(sum));
  return out;
}

// The derivative of the step's loss, by fourth-order differences.
void check_gradient(Rig& rig) {
  const Rig::Result at = rig.run(logits());
  double norm = 0;
  for (float g : at.gradient) norm += double(g) * double(g);
  ASSERT_GT(norm, 0);
  norm = std::sqrt(norm);
  auto moved = [&](double step) {
    Floats x = logits();
    for (size_t i = 0; i < x.size(); ++i) x[i] += float(step * double(at.gradient[i]) / norm);
    return rig.run(x).loss;
  };
  const double h = 0.05;
  const double slope = (8 * (moved(h) - moved(-h)) - (moved(2 * h) - moved(-2 * h))) / (12 * h);
  EXPECT_NEAR(slope, norm, 2e-4 * norm);
}

TEST(ClassObjective, LossIsTheMeanOverKnownLabels) {
  for (int64_t slices : {1, 3}) {
    Rig rig({.ignores_unknown = true}, {}, slices);
    const Labels labels = {1, -1, 4, 0, -1, 2};
    rig.prepare(labels);
    const Rig::Result got = rig.run(logits());
    double want = 0;
    for (int64_t b = 0; b < kBatch; ++b)
      if (labels[size_t(b)] >= 0)
        want -= float_log_softmax(logits(), b)[size_t(labels[size_t(b)])] / 4;
    EXPECT_NEAR(got.loss, want, 1e-6);
    check_gradient(rig);
    rig.prepare({-1, -1, -1, -1, -1, -1});
    EXPECT_TRUE(std::isnan(rig.run(logits()).loss)) << "as published";
  }
}

struct LossDeck {
  models::ClassLossOptions loss;
  void bind(config::Table& t) { loss.bind_loss(t, kClasses); }
};

TEST(ClassObjective, SmoothingOverAllClasses) {
  LossDeck root;
  config::Deck({"deck.toml", "label_smoothing = 0.1\nsmoothing_over = \"all\"\n", {}}, root)
      .throw_if_any();
  Rig rig(root.loss);
  const Labels labels = {1, 3, 4, 0, 2, 2};
  rig.prepare(labels);
  double want = 0;
  for (int64_t b = 0; b < kBatch; ++b) {
    const std::vector<double> p = float_log_softmax(logits(), b);
    for (int64_t c = 0; c < kClasses; ++c)
      want -= ((c == labels[size_t(b)] ? 0.9 : 0) + 0.1 / kClasses) * p[size_t(c)] / kBatch;
  }
  EXPECT_NEAR(rig.run(logits()).loss, want, 1e-6);
  check_gradient(rig);
}

// Sum over the classes of means over the images whose class is known (ssl.md 3.3).
TEST(ClassObjective, BinaryCrossEntropyOfKnownClasses) {
  Floats targets;
  for (int64_t i = 0; i < kBatch * kClasses; ++i) {
    const auto drawn = base::Stream(8, "targets").bits(uint64_t(i)) % 3;
    targets.push_back(float(drawn) - 1);
    if (i % kClasses == 4) targets.back() = -1;
  }
  for (int64_t slices : {1, 2}) {
    Rig rig({.loss = ClassLoss::sigmoid, .targets = "shown", .ignores_unknown = true}, {}, slices);
    rig.prepare_targets(targets);
    const Floats x = logits();
    double want = 0;
    for (int64_t c = 0; c < kClasses; ++c) {
      double sum = 0, known = 0;
      for (int64_t b = 0; b < kBatch; ++b) {
        const double z = double(x[size_t(b * kClasses + c)]),
                     t = double(targets[size_t(b * kClasses + c)]);
        if (t < 0) continue;
        sum += std::max(z, 0.0) - z * t + std::log1p(std::exp(-std::abs(z)));
        known += 1;
      }
      want += sum / std::max(known, 1.0);
    }
    EXPECT_NEAR(rig.run(x).loss, want, 2e-6);
    check_gradient(rig);
  }
}

TEST(ClassObjective, DistributionsAsTargets) {
  Floats targets;
  for (int64_t i = 0; i < kBatch * kClasses; ++i)
    targets.push_back(0.2f * float(base::Stream(8, "shares").uniform(uint64_t(i))));
  Rig rig({.targets = "shown"});
  rig.prepare_targets(targets);
  double want = 0;
  for (int64_t b = 0; b < kBatch; ++b)
    for (int64_t c = 0; c < kClasses; ++c)
      want -= double(targets[size_t(b * kClasses + c)]) *
              float_log_softmax(logits(), b)[size_t(c)] / kBatch;
  EXPECT_NEAR(rig.run(logits()).loss, want, 1e-6);
  check_gradient(rig);
}

// PyTorch's MSELoss and SmoothL1Loss, means over all outputs of all images; targets are any
// numbers.
TEST(ClassObjective, ErrorsOfNumbers) {
  Floats targets;
  for (int64_t i = 0; i < kBatch * kClasses; ++i)
    targets.push_back(3 * float(base::Stream(8, "numbers").normal(uint64_t(i))));
  targets[3] = -1;
  const Labels labels = {1, 3, 4, 0, 2, 2};
  for (const ClassLoss kind : {ClassLoss::squared, ClassLoss::smooth_l1})
    for (const bool of_labels : {false, true}) {
      const double beta = kind == ClassLoss::smooth_l1 ? 0.5 : 1;
      Rig rig({.loss = kind, .beta = beta, .targets = of_labels ? "" : "shown"});
      if (of_labels)
        rig.prepare(labels);
      else
        rig.prepare_targets(targets);
      double want = 0;
      for (int64_t i = 0; i < kBatch * kClasses; ++i) {
        const double t = of_labels ? double(labels[size_t(i / kClasses)] == i % kClasses)
                                   : double(targets[size_t(i)]),
                     e = std::abs(double(logits()[size_t(i)]) - t);
        want += kind == ClassLoss::squared ? e * e : e < beta ? e * e / 2 / beta : e - beta / 2;
      }
      want /= kBatch * kClasses;
      EXPECT_NEAR(rig.run(logits()).loss, want, 1e-6 * want);
      check_gradient(rig);
      EXPECT_EQ(rig.measures().size(), of_labels ? 2u : 1u) << "numbers have no accuracy";
    }
}

// A mix of labels is the same as a mix of their one-hot targets, whichever share is larger.
TEST(ClassObjective, MixesOfLabelsAreMixesOfTargets) {
  const MixupOptions mixup{.p = 0.8,
                           .group = 6,
                           .cutmix_p = 1,
                           .partner = kernels::MixPartner::mirrored,
                           .larger = false};
  const Labels labels = {1, 3, 4, 0, 2, 2};
  Floats hot(size_t(kBatch * kClasses), 0.0f);
  for (int64_t b = 0; b < kBatch; ++b) hot[size_t(b * kClasses + labels[size_t(b)])] = 1;
  Rig of_labels({}, mixup), of_targets({.targets = "shown"}, mixup);
  of_labels.prepare(labels);
  of_targets.prepare_targets(hot);
  const Rig::Result a = of_labels.run(logits()), b = of_targets.run(logits());
  EXPECT_NEAR(a.loss, b.loss, 1e-6);
  for (size_t i = 0; i < a.gradient.size(); ++i) EXPECT_NEAR(a.gradient[i], b.gradient[i], 1e-7);
  EXPECT_EQ(a.hits, b.hits);
  for (int64_t i = 0; i < kBatch; ++i)
    EXPECT_GE(of_labels.inputs().at("share").host.f32()[i], 0.5f) << "the label is the larger part";
  std::set<float> shares;
  for (int64_t i = 0; i < kBatch; ++i) shares.insert(of_targets.inputs().at("share").host.f32()[i]);
  EXPECT_LT(*shares.begin(), 0.5f) << "the test needs a smaller share";
  check_gradient(of_labels);
}

TEST(ClassObjective, AMixWithAnUnknownLabelIsUnknown) {
  const MixupOptions mixup{.p = 0.8, .group = 2};
  Rig rig({.ignores_unknown = true}, mixup);
  rig.prepare({1, 3, -1, 0, 2, 2});
  const int32_t* own = rig.inputs().at("label").host.i32();
  EXPECT_EQ(Labels(own, own + kBatch), (Labels{1, 3, -1, -1, 2, 2}));
  check_gradient(rig);
}

TEST(ClassObjective, Refusals) {
  auto refused = [](base::Exit code, std::vector<std::string> parts,
                    const std::function<void()>& run) {
    try {
      run();
      ADD_FAILURE() << parts[0];
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), code) << e.what();
      for (const std::string& part : parts)
        EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  Rig labels({}), known({.ignores_unknown = true}), targets({.targets = "shown"}),
      unknown({.loss = ClassLoss::sigmoid, .targets = "shown", .ignores_unknown = true});
  refused(base::Exit::data,
          {"label -1 of the example at position 12", "model.unknown = \"ignore\""}, [&] {
            labels.prepare({1, 3, -1, 0, 2, 2});
          });
  refused(base::Exit::data, {"label 5 of the example at position 10 is not in [0, 5)"}, [&] {
    known.prepare({5, 3, -1, 0, 2, 2});
  });
  refused(base::Exit::data, {"label -2", "not -1 (not known)"}, [&] {
    known.prepare({-2, 3, -1, 0, 2, 2});
  });
  Floats numbers(size_t(kBatch * kClasses), 0.5f);
  for (float wrong : {-1.0f, 1.5f, NAN}) {
    numbers[8] = wrong;
    refused(base::Exit::data, {"field 'shown' of the example at position 11", "for class 3"},
            [&] { targets.prepare_targets(numbers); });
    if (wrong != -1)
      refused(base::Exit::data, {"and -1 for not known, are allowed"},
              [&] { unknown.prepare_targets(numbers); });
  }
  Rig values({.loss = ClassLoss::squared, .targets = "shown"});
  refused(base::Exit::data, {"position 11 holds nan for output 3", "finite numbers"},
          [&] { values.prepare_targets(numbers); });
  known.prepare({1, 3, -1, 0, 2, 2});
  refused(
      base::Exit::config,
      {"model.unknown = \"ignore\"", "whole batch of 12", "holds 6 examples", "train.micro_batch"},
      [&] { known.run(logits(), 12); });
}

}  // namespace
