// SPDX-License-Identifier: Apache-2.0
#include "ssl_class_losses.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/l2_normalize.hpp"
#include "kernels/target_counts.hpp"
#include "kernels/target_xent.hpp"
#include "keys.hpp"
#include "models/classes/class_objective.hpp"
#include "on_device.hpp"

namespace golden {
namespace {

constexpr const char* kXent = "cross_entropy_multiple_output_single_target";
constexpr const char* kBce = "bce_logits_multiple_output_single_target";

class ClassLossCase {
 public:
  ClassLossCase(const CaseFile& file, const std::string& group, const Settings& settings)
      : file_(file), group_(group), settings_(settings) {
    const nlohmann::json config = file.json(group);
    Keys keys(file, config, group);
    kind_ =
        keys.text("name", "") == kBce ? kernels::ClassLoss::sigmoid : kernels::ClassLoss::softmax;
    temperature_ = keys.number("temperature", 1);
    normalised_ = keys.flag("normalize_output", false);
    options_.label_smoothing = keys.number("label_smoothing", 0);
    const int64_t ignored = keys.integer("ignore_index", -1);
    for (const char* known : {"reduction", "world_size"}) keys.find(known);
    keys.done();
    options_.smooth_over_all = true;
    const Shape shape = file.shape(group + "/inputs/output0");
    if (shape.size() != 2) file.fail(group + "/inputs/output0", "is no table [rows, classes]");
    rows_ = shape[0];
    columns_ = shape[1];
    const std::string target = group + "/inputs/target";
    if (file.shape(target).size() == 1) {
      labels_ = file.ints(target, {rows_});
      // Our loss leaves out rows with label -1.
      std::replace(labels_.begin(), labels_.end(), int32_t(ignored), int32_t(-1));
      return;
    }
    if (kind_ == kernels::ClassLoss::sigmoid) {
      const std::vector<int32_t> whole = file.ints(target, shape);
      targets_.assign(whole.begin(), whole.end());
    } else {
      targets_ = file.floats(target, shape);
    }
  }

  void run(Report& report) const {
    double loss = 0;
    for (int64_t k = 0; file_.has(fmt::format("{}/inputs/output{}", group_, k)); ++k) {
      const std::string gradient = fmt::format("{}/ranks1/grad{}", group_, k);
      const std::vector<float> got = one_output(fmt::format("{}/inputs/output{}", group_, k), loss);
      const std::vector<float> want = file_.floats(gradient, {rows_, columns_});
      report.compare("class loss gradients", gradient, got.data(), want.data(), int64_t(got.size()),
                     file_.tolerance(gradient));
    }
    const std::string name = group_ + "/ranks1/loss";
    report.compare("class losses", name, loss, double(file_.floats(name, {})[0]),
                   file_.tolerance(name));
  }

 private:
  // Adds the loss of one output; returns its gradient.
  std::vector<float> one_output(const std::string& set, double& total) const {
    OnDevice device(settings_);
    std::vector<float> x = file_.floats(set, {rows_, columns_}), loss(size_t(rows_), 0.0f);
    const float scale = float(1 / temperature_);
    const device::View in = device.copy(x), inverse = device.copy(loss);
    if (!normalised_)
      for (float& v : x) v *= scale;
    const device::View logits = device.copy(x), losses = device.copy(loss);
    if (normalised_)
      device.run(kernels::L2NormalizeForward{.y = logits,
                                             .x = in,
                                             .inverse = inverse,
                                             .rows = rows_,
                                             .width = columns_,
                                             .scale = scale});
    const double factor = cross_entropy(device, logits, losses);
    if (normalised_)
      device.run(kernels::L2NormalizeBackward{.dx = logits,
                                              .dy = logits,
                                              .x = in,
                                              .inverse = inverse,
                                              .rows = rows_,
                                              .width = columns_,
                                              .scale = scale});
    device.read(logits, x);
    device.read(losses, loss);
    for (float l : loss) total += factor * double(l) / double(rows_);
    if (!normalised_)
      for (float& v : x) v *= scale;
    return x;
  }

  // Replaces logits by the gradient. Returns the factor of the sum of losses / rows.
  double cross_entropy(OnDevice& device, device::View logits, device::View loss) const {
    const int64_t columns = labels_.empty() ? columns_ : 1;
    const device::View values = labels_.empty() ? device.copy(targets_) : device.copy(labels_);
    const std::vector<float> zeros(size_t(2 * columns), 0.0f);
    const device::View weights = device.copy(zeros).slice(0, columns);
    const device::View counts{device.copy(zeros).data, device::DType::f64, columns};
    device.run(kernels::TargetCounts{
        .counts = counts, .values = values, .rows = rows_, .columns = columns});
    device.run(kernels::CountWeights{
        .weights = weights, .counts = counts, .columns = columns, .examples = double(rows_)});
    const float scale = 1 / float(rows_);
    if (labels_.empty()) {
      device.run(kernels::TargetXent{
          .logits = logits,
          .targets = values,
          .weights = kind_ == kernels::ClassLoss::sigmoid ? weights : device::View(),
          .loss = loss,
          .rows = rows_,
          .columns = columns_,
          .kind = kind_,
          .scale = scale});
      return 1;
    }
    device.run(kernels::ClassXent{.logits = logits,
                                  .labels = values,
                                  .loss = loss,
                                  .rows = rows_,
                                  .columns = columns_,
                                  .kind = kind_,
                                  .smoothing = float(options_.smoothing(columns_)),
                                  .scale = scale,
                                  .loss_scale = weights});
    std::vector<float> factor(1);
    device.read(weights, factor);
    return double(factor[0]);
  }

  const CaseFile& file_;
  const std::string group_;
  const Settings& settings_;
  kernels::ClassLoss kind_ = kernels::ClassLoss::softmax;
  double temperature_ = 1;
  bool normalised_ = false;
  models::ClassLossOptions options_;
  int64_t rows_ = 0, columns_ = 0;
  std::vector<int32_t> labels_;  // or targets
  std::vector<float> targets_;
};

}  // namespace

bool is_class_loss(const std::string& name) { return name == kXent || name == kBce; }

void run_class_loss(const CaseFile& file, const std::string& group, const Settings& settings,
                    Report& report) {
  ClassLossCase(file, group, settings).run(report);
}

}  // namespace golden
