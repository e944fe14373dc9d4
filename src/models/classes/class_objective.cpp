// SPDX-License-Identifier: Apache-2.0
#include "models/classes/class_objective.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/elementary.hpp"
#include "base/fused.hpp"
#include "kernels/rank_hits.hpp"
#include "kernels/target_counts.hpp"
#include "kernels/target_xent.hpp"

namespace models {

using device::DType;

void ClassLossOptions::bind_loss(config::Table& t, int64_t num_classes) {
  t.choice("loss", loss, kClassLossNames,
           "softmax: cross-entropy of one distribution over the classes; sigmoid: sum over the "
           "classes of binary cross-entropies; mse, smooth_l1: mean over the classes of the error "
           "of the output itself, squared or as PyTorch's smooth L1, to 1 and 0 of the label, or "
           "to any numbers in targets");
  t.key("beta", beta, "smooth_l1: errors below it are squared").above(0);
  t.key("label_smoothing", label_smoothing, "share of the target that other classes get")
      .min(0)
      .max(0.99);
  t.choice("smoothing_over", smooth_over_all, {{"others", false}, {"all", true}},
           "others: the other classes have the share label_smoothing together, as in big_vision; "
           "all: every class has label_smoothing / num_classes, the own one too, as in PyTorch");
  t.key(
      "targets", targets,
      "field with a number for each class, instead of label: 1 = shown, 0 = not, -1 = not known "
      "(unknown); with softmax: the share of the class; with mse and smooth_l1: any number; \"\" = "
      "field label");
  t.choice(
      "unknown", ignores_unknown, {{"error", false}, {"ignore", true}},
      "what a label or target of -1 (not known) does. error: ends the run with exit 4; ignore: it "
      "has no loss, and means are over the known ones of the whole batch, which must be one pass");
  if (num_classes == 1 && (loss == kernels::ClassLoss::softmax || label_smoothing > 0))
    t.error("num_classes",
            loss == kernels::ClassLoss::softmax
                ? "a softmax over 1 class has nothing to learn: use loss = \"sigmoid\""
                : "label_smoothing needs a second class");
  if (!targets.empty() && label_smoothing > 0)
    t.error("label_smoothing",
            "applies only to labels, but targets gives each class its own number: remove one of "
            "the two");
  if (beta != 1 && loss != kernels::ClassLoss::smooth_l1)
    t.error("beta", "applies only to loss = \"smooth_l1\": remove the key, or choose that loss");
  if (!targets.empty() && ignores_unknown && compares_values())
    t.error("unknown", "with this loss a target of -1 is an ordinary number: leave the key out");
  if (!targets.empty() && ignores_unknown && loss == kernels::ClassLoss::softmax)
    t.error("unknown", "with a softmax no single class can be unknown: use loss = \"sigmoid\"");
}

std::pair<std::string, FeatureSpec> ClassObjective::feature() const {
  if (of_labels())
    return {"label",
            {.type = DType::i32,
             .shape = {},
             .key = "model.kind",
             .below = options_.ignores_unknown ? 0 : classes_,
             .limit_key = "model.num_classes"}};
  return {options_.targets, {.type = DType::f32, .shape = {classes_}, .key = "model.num_classes"}};
}

std::vector<InputSpec> ClassObjective::inputs(bool mixes) const {
  if (!of_labels()) return {{"targets", DType::f32, classes_, mixes ? "" : options_.targets}};
  std::vector<InputSpec> specs = {{"label", DType::i32, 1, mixes ? "" : "label"}};
  if (mixes) specs.push_back({"other_label", DType::i32, 1});
  if (counts_labels()) specs.push_back({"known", DType::f32, 1});
  return specs;
}

std::vector<Measure> ClassObjective::measures(int hits, int known) const {
  const bool values = options_.compares_values();
  const char* unit = values                                         ? "1"
                     : options_.loss == kernels::ClassLoss::softmax ? "nats"
                                                                    : "nats over all classes";
  const int examples = counts_labels() ? known : Measure::kExamples;
  std::vector<Measure> all = {
      {"loss", unit,
       values
           ? "error of this step's batch before the update, smoothing and mixup included"
           : "cross-entropy of this step's batch before the update, smoothing and mixup included",
       0, examples}};
  if (!values || of_labels())
    all.push_back(
        {"accuracy", "1",
         of_labels()
             ? "share of this step's batch whose own class is the most likely one; a "
               "blend has the class of its larger share"
             : "share of this step's images whose most likely class is one that the image shows",
         hits, examples});
  return all;
}

double ClassObjective::uniform_loss() const {
  const double n = double(classes_);
  if (options_.compares_values()) return std::numeric_limits<double>::quiet_NaN();
  if (options_.loss == kernels::ClassLoss::softmax && of_labels()) return base::math::log(n);
  // Each class is given the probability 1 / n.
  return n > 1 && of_labels() ? base::fused(1 - n, base::math::log1p(-1 / n), base::math::log(n))
                              : std::numeric_limits<double>::quiet_NaN();
}

std::string ClassObjective::changing_arguments() const {
  return options_.ignores_unknown ? "known labels are counted over all ranks" : "";
}

// ---------------------------------------------------------------- inputs

void ClassObjective::check_labels(const HostBatch& batch, int64_t classes, bool unknown) {
  const View label = batch.features.at("label");
  CHECK(label.count == batch.examples && label.type == DType::i32,
        "{} labels of type {} for {} examples", label.count, device::name_of(label.type),
        batch.examples);
  for (int64_t b = 0; b < batch.examples; ++b)
    if (int32_t c = label.i32()[b]; c >= classes || c < (unknown ? -1 : 0))
      base::fail(base::Exit::data,
                 "label {} of the example at position {} is not in [0, {}) (model.num_classes){}",
                 c, batch.first_position + b, classes,
                 unknown   ? ", and not -1 (not known)"
                 : c == -1 ? "; model.unknown = \"ignore\" trains without such examples"
                           : "");
}

void ClassObjective::prepare(const HostBatch& batch, const std::vector<Mix>& mixes,
                             const Mixing& mixing, const Inputs& into) const {
  if (of_labels()) return prepare_labels(batch, mixes, mixing, into);
  prepare_targets(batch, mixes, mixing, into);
}

void ClassObjective::prepare_labels(const HostBatch& batch, const std::vector<Mix>& mixes,
                                    const Mixing& mixing, const Inputs& into) const {
  check_labels(batch, classes_, options_.ignores_unknown);
  const int32_t* labels = batch.features.at("label").i32();
  int32_t* own = into.at("label").host.i32();
  for (size_t i = 0; i < mixes.size(); ++i) {
    const auto b = int64_t(i);
    int32_t& other = into.at("other_label").host.i32()[b];
    float& share = into.at("share").host.f32()[b];
    own[b] = labels[b];
    other = labels[mixing.partner(b)];
    // The class of the larger share is the one that counts as right.
    if (share < 0.5f) {
      std::swap(own[b], other);
      share = 1 - share;
    }
    if (own[b] < 0 || other < 0) {
      own[b] = -1;
      other = 0;
    }
  }
  for (int64_t b = 0; counts_labels() && b < batch.examples; ++b)
    into.at("known").host.f32()[b] = own[b] < 0 ? 0 : 1;
}

void ClassObjective::prepare_targets(const HostBatch& batch, const std::vector<Mix>& mixes,
                                     const Mixing& mixing, const Inputs& into) const {
  const View given = batch.features.at(options_.targets), out = into.at("targets").host;
  CHECK(given.count == out.count, "{} targets for {} numbers", given.count, out.count);
  const float* t = given.f32();
  for (int64_t i = 0; options_.compares_values() && i < given.count; ++i)
    if (!std::isfinite(t[i]))
      base::fail(base::Exit::data,
                 "field '{}' of the example at position {} holds {} for output {}; finite numbers "
                 "are allowed (model.targets)",
                 options_.targets, batch.first_position + i / classes_, t[i], i % classes_);
  for (int64_t i = 0; !options_.compares_values() && i < given.count; ++i)
    if (!((t[i] >= 0 && t[i] <= 1) || (t[i] == -1 && options_.ignores_unknown)))
      base::fail(
          base::Exit::data,
          "field '{}' of the example at position {} holds {} for class {}; {} (model.targets)",
          options_.targets, batch.first_position + i / classes_, t[i], i % classes_,
          options_.ignores_unknown
              ? "numbers from 0 to 1, and -1 for not known, are allowed"
              : "numbers from 0 to 1 are allowed, and -1 with model.unknown = \"ignore\"");
  for (size_t i = 0; i < mixes.size(); ++i) {
    const auto b = int64_t(i);
    const float share = mixes[i].share;
    const float *own = t + b * classes_, *other = t + mixing.partner(b) * classes_;
    for (int64_t c = 0; c < classes_; ++c)
      out.f32()[b * classes_ + c] = !options_.compares_values() && (own[c] < 0 || other[c] < 0)
                                        ? -1
                                        : base::fused(share, own[c], (1 - share) * other[c]);
  }
}

// ---------------------------------------------------------------- passes

void ClassObjective::check_pass(const nn::Context& ctx, int64_t global_batch) const {
  if (!options_.ignores_unknown) return;
  CHECK(ctx.group, "a training pass without the group of its batch");
  if (const int64_t together = ctx.batch * ctx.group->ranks(); together != global_batch)
    base::fail(
        base::Exit::config,
        "model.unknown = \"ignore\": known labels are counted over the whole batch of {}, but "
        "a pass of all ranks holds {} examples; use more ranks, a larger train.micro_batch "
        "(0 = all at once) or a smaller train.global_batch",
        global_batch, together);
}

// Returns f32 [columns]: factor * examples / (known values of the column in the whole batch).
View ClassObjective::weights_of_counts(nn::Context& ctx, View values, int64_t columns,
                                       double examples, View factor) const {
  View weights = ctx.arena.temporary(columns);
  View counts = ctx.arena.temporary(ctx.slices * columns, DType::f64);
  ctx.run(kernels::TargetCounts{.counts = counts,
                                .values = values,
                                .rows = ctx.batch,
                                .columns = columns,
                                .slices = ctx.slices});
  ctx.run(kernels::CountWeights{.weights = weights,
                                .counts = ctx.group->sum(counts, ctx.queue),
                                .factor = factor,
                                .columns = columns,
                                .examples = examples});
  return weights;
}

void ClassObjective::run(nn::Context& ctx, const Inputs& inputs, View logits, int64_t global_batch,
                         View loss, View hits) const {
  const float scale = 1 / float(global_batch);
  const double examples = double(global_batch);
  if (!of_labels()) {
    View targets = inputs.at("targets").device, weights;
    if (options_.ignores_unknown) weights = weights_of_counts(ctx, targets, classes_, examples, {});
    ctx.run(kernels::TargetXent{.logits = logits,
                                .targets = targets,
                                .weights = weights,
                                .loss = loss,
                                .hits = hits,
                                .rows = ctx.batch,
                                .columns = classes_,
                                .kind = options_.loss,
                                .beta = float(options_.beta),
                                .scale = scale,
                                .loss_scale = ctx.loss_scale});
    return;
  }
  device::Arena::Scope scope(ctx.arena);
  const View ranks = ctx.arena.temporary(ctx.batch, DType::i32);
  kernels::ClassXent xent{.logits = logits,
                          .labels = inputs.at("label").device,
                          .loss = loss,
                          .ranks = ranks,
                          .rows = ctx.batch,
                          .columns = classes_,
                          .kind = options_.loss,
                          .smoothing = float(options_.smoothing(classes_)),
                          .beta = float(options_.beta),
                          .scale = scale,
                          .loss_scale = ctx.loss_scale};
  if (inputs.contains("other_label")) {
    xent.others = inputs.at("other_label").device;
    xent.shares = inputs.at("share").device;
  }
  if (counts_labels())
    xent.loss_scale = weights_of_counts(ctx, xent.labels, 1, examples, ctx.loss_scale);
  ctx.run(xent);
  kernels::RankHits counted{
      .hits = hits, .ranks = ranks, .rows = ctx.batch, .count = int64_t(top_.size())};
  for (size_t j = 0; j < top_.size(); ++j)
    counted.k[j] = int32_t(std::min<int64_t>(top_[j], INT32_MAX));
  ctx.run(counted);
}

}  // namespace models
