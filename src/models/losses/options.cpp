// SPDX-License-Identifier: Apache-2.0
// Keys of the losses of embeddings.
#include <fmt/format.h>

#include <algorithm>

#include "base/fused.hpp"
#include "models/losses/losses.hpp"

namespace models {
namespace {

using enum config::OnResume;
// exp of 1 / temperature must stay finite (ssl.md 9).
constexpr double kLeastTemperature = 0.0115;

void bind_views(config::Table& t, const char* name, std::vector<int64_t>& views, const char* doc) {
  t.key(name, views, doc).min(0).max(1023).on_resume(never).check([&views]() -> std::string {
    std::vector<int64_t> sorted = views;
    std::sort(sorted.begin(), sorted.end());
    if (views.empty() || views.size() > 16) return "needs 1 to 16 views";
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
      return "names a view twice";
    return "";
  });
}

}  // namespace

void SimclrLossOptions::bind(config::Table& t) {
  t.key("temperature", temperature, "cosines are divided by it").min(kLeastTemperature);
  t.key("negative_group", negative_group,
        "consecutive examples of the global batch whose views are each other's negatives; 0: all. "
        "The published multi-crop loss uses the examples of one rank")
      .min(0)
      .unit("examples");
}

void BarlowLossOptions::bind(config::Table& t) {
  t.key("lambda", lambda, "weight of the squared correlations of different features").min(0);
  t.key("scale", scale, "factor of the loss").above(0);
  t.key("gradient_divisor", gradient_divisor,
        "the gradient is divided by it. The published code divides by the number of its ranks, "
        "which LARS hides")
      .min(1);
}

void MocoLossOptions::bind(config::Table& t) {
  t.key("queue_size", queue_size, "keys of earlier batches; a multiple of train.global_batch")
      .min(1)
      .max(1 << 24)
      .on_resume(never);
  t.key("temperature", temperature, "cosines are divided by it").min(kLeastTemperature);
}

void SwavLossOptions::bind(config::Table& t) {
  t.key("temperature", temperature, "scores of predictions are divided by it").above(0);
  t.key("epsilon", epsilon, "scores are divided by it before they are assigned")
      .min(kLeastTemperature);
  t.key("sinkhorn_iterations", sinkhorn_iterations, "rounds of the assignment").min(0).max(1000);
  t.key("hard_assignment_steps", hard_assignment_steps,
        "in the first steps each target is the one prototype with the largest share")
      .min(0)
      .unit("steps");
  bind_views(t, "assign_views", assign_views,
             "views whose assignment is the target of all other views");
  t.key("double_precision", double_precision, "assign in float64");
  t.key("queue_length", queue_length,
        "embeddings of earlier batches that are assigned too; 0: none, else a multiple of "
        "train.global_batch")
      .min(0)
      .on_resume(never);
  t.key("queue_start_steps", queue_start_steps, "steps before the queue is used")
      .min(0)
      .unit("steps");
  t.key("random_first_scores", random_first_scores,
        "the first step with a queue uses random scores of it, as the published code does")
      .on_resume(never);
}

void DinoLossOptions::bind(config::Table& t) {
  t.key("student_temperature", student_temperature, "the network's scores are divided by it")
      .above(0);
  t.key("teacher_temperature_start", teacher_temperature_start,
        "the teacher's scores are divided by it at first")
      .above(0);
  t.key("teacher_temperature", teacher_temperature,
        "the teacher's scores are divided by it after the warm-up")
      .above(0);
  t.key("teacher_temperature_warmup_steps", teacher_temperature_warmup_steps,
        "steps from the first temperature to the last one, both included")
      .min(0)
      .unit("steps");
  bind_views(t, "teacher_views", teacher_views, "views that the teacher sees");
  t.key("center_momentum", center_momentum, "share of the centre that a step keeps").min(0).max(1);
}

double DinoLossOptions::teacher_temperature_at(int64_t step) const {
  const int64_t at = step - 1, steps = teacher_temperature_warmup_steps;
  if (at >= steps) return teacher_temperature;
  if (steps == 1) return teacher_temperature_start;
  const double share = double(at) / double(steps - 1);
  return base::fused(share, teacher_temperature - teacher_temperature_start,
                     teacher_temperature_start);
}

void DeepclusterLossOptions::bind(config::Table& t) {
  t.key("samples", samples, "rows of the memory: samples of the training data set")
      .required()
      .min(2)
      .max(INT32_MAX)
      .on_resume(never);
  t.key("clusters", clusters, "clusters of each set; the sets take the memory views in turn")
      .min(1)
      .max(1 << 24)
      .on_resume(never)
      .check([this]() -> std::string {
        if (clusters.empty() || clusters.size() > 64) return "needs 1 to 64 sets";
        const int64_t most = *std::max_element(clusters.begin(), clusters.end());
        return most > samples
                   ? fmt::format("{} clusters are more than the {} samples (model.loss.samples)",
                                 most, samples)
                   : "";
      });
  t.key("kmeans_iterations", kmeans_iterations, "rounds of k-means at the start of an epoch")
      .min(0)
      .max(1000);
  bind_views(t, "memory_views", memory_views, "views whose embeddings the memory keeps");
  t.key("temperature", temperature, "cosines are divided by it").min(kLeastTemperature);
}

void NceLossOptions::bind(config::Table& t) {
  t.key("samples", samples,
        "rows of the memory: samples of the training data set; 0 = as many as train.data has")
      .min(0)
      .max(INT32_MAX)
      .on_resume(never);
  if (samples == 1)
    t.error("samples", "1 leaves no other image to tell apart; give at least 2, or 0");
  t.key("negatives", negatives, "random rows of the memory that each embedding is compared with")
      .min(1);
  t.key("temperature", temperature, "cosines are divided by it").min(kLeastTemperature);
  t.key("momentum", momentum, "share of its old value that a row of the memory keeps")
      .min(0)
      .max(1);
  t.key("norm_constant", norm_constant,
        "constant of the probabilities; below 0: from the first batch")
      .on_resume(never);
  t.choice("loss", loss, {{"nce", BankLoss::nce}, {"cross_entropy", BankLoss::cross_entropy}},
           "nce: noise-contrastive estimation; cross_entropy: of the softmax over one positive "
           "and all negatives");
  t.key("loss_weights", loss_weights, "weight of the loss of each output of the head").min(0);
  t.key("update_output", update_output,
        "output of the head that updates the memory; -1: every output in turn")
      .min(-1);
  if (update_output >= int64_t(loss_weights.size()))
    t.error("update_output",
            fmt::format("there is no output {}: loss_weights lists {}, counted from 0",
                        update_output, loss_weights.size()));
}

void SigmoidLossOptions::bind(config::Table& t) {
  t.key("temperature_init", temperature_init,
        "initial factor of the cosines; its logarithm is trained")
      .above(0)
      .on_resume(never);
  t.key("bias_init", bias_init,
        "initial value of the trained bias that is added to the scaled cosines")
      .on_resume(never);
}

}  // namespace models
