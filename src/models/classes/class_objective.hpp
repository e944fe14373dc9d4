// SPDX-License-Identifier: Apache-2.0
// The targets and the loss of heads over classes. A target is the class of an image, or a number
// for each class. The loss is softmax or sigmoid cross-entropy, with smoothing, mixes and unknown
// labels (ssl.md 3.3), or a squared or smooth absolute error.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kernels/class_xent.hpp"
#include "models/classes/mixing.hpp"
#include "models/model.hpp"

namespace models {

inline constexpr std::pair<const char*, kernels::ClassLoss> kClassLossNames[] = {
    {"softmax", kernels::ClassLoss::softmax},
    {"sigmoid", kernels::ClassLoss::sigmoid},
    {"mse", kernels::ClassLoss::squared},
    {"smooth_l1", kernels::ClassLoss::smooth_l1}};

// Keys of [model] about the loss.
struct ClassLossOptions {
  kernels::ClassLoss loss = kernels::ClassLoss::softmax;
  double beta = 1;
  double label_smoothing = 0;
  bool smooth_over_all = false;  // smoothing_over
  std::string targets{};         // field with a number for each class; "" = field label
  bool ignores_unknown = false;  // unknown
  void bind_loss(config::Table& t, int64_t num_classes);
  // True if outputs are numbers, not scores of classes.
  bool compares_values() const { return kernels::compares_values(loss); }
  // Returns label_smoothing e as class_xent defines it: e for the other classes together. Over all
  // classes, the published target is 1 - e + e / C of the own class and e / C of the others.
  double smoothing(int64_t num_classes) const {
    return smooth_over_all ? label_smoothing * double(num_classes - 1) / double(num_classes)
                           : label_smoothing;
  }
};

class ClassObjective {
 public:
  // top: each K of the counted hits.
  ClassObjective(const ClassLossOptions& options, int64_t classes, std::vector<int64_t> top = {1})
      : options_(options), classes_(classes), top_(std::move(top)) {}

  // The field that holds labels or targets.
  std::pair<std::string, FeatureSpec> feature() const;
  // The buffers of a training pass besides the buffers of images and mixes.
  std::vector<InputSpec> inputs(bool mixes) const;
  // Returns loss and accuracy. Column 0 of the step's sums holds the loss, `hits` the hits of the
  // most likely class, and `known`, if counts_labels(), the number of known labels.
  std::vector<Measure> measures(int hits, int known) const;
  double uniform_loss() const;
  std::string changing_arguments() const;
  // Makes those that are no fields. Throws Error(Exit::data) for a label that is not a class, or a
  // number that is not a target.
  void prepare(const HostBatch& batch, const std::vector<Mix>& mixes, const Mixing& mixing,
               const Inputs& into) const;
  // Refuses labels outside [0, classes). `unknown`: -1 is allowed.
  static void check_labels(const HostBatch& batch, int64_t classes, bool unknown);

  // Refuses passes over a part of the batch if the known labels of the whole batch must be counted
  // first.
  void check_pass(const nn::Context& ctx, int64_t global_batch) const;
  // logits [ctx.batch, classes] become their gradient. Writes loss f32 [ctx.batch], of which the
  // step's loss is the mean, and hits f32 [counts of `top`, ctx.batch]: 1 if the own class is among
  // the K most likely ones, 0 if not. With targets, hits has one row.
  void run(nn::Context& ctx, const Inputs& inputs, View logits, int64_t global_batch, View loss,
           View hits) const;
  // True if means are over the examples for which input `known` holds 1. All others have neither
  // loss nor hits.
  bool counts_labels() const { return options_.ignores_unknown && of_labels(); }

 private:
  bool of_labels() const { return options_.targets.empty(); }
  void prepare_labels(const HostBatch& batch, const std::vector<Mix>& mixes, const Mixing& mixing,
                      const Inputs& into) const;
  void prepare_targets(const HostBatch& batch, const std::vector<Mix>& mixes, const Mixing& mixing,
                       const Inputs& into) const;
  View weights_of_counts(nn::Context& ctx, View values, int64_t columns, double examples,
                         View factor) const;

  ClassLossOptions options_;
  int64_t classes_;
  std::vector<int64_t> top_;
};

}  // namespace models
