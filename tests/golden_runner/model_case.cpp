// SPDX-License-Identifier: Apache-2.0
// Model cases: logits, losses and gradients of one batch.
#include <fmt/format.h>

#include <cmath>

#include "models/captions/cappa.hpp"
#include "run_case.hpp"

namespace golden {
namespace {

// Adds the mean losses per token (cappa.md 3) of n examples, in double.
double loss_sum(const std::vector<float>& logits, const int32_t* labels, const float* weights,
                int64_t n, int64_t length, int64_t columns, double smoothing) {
  double total = 0, off = smoothing / double(columns - 1);
  for (int64_t b = 0; b < n; ++b) {
    double sum = 0, count = 0;
    for (int64_t r = b * length; r < (b + 1) * length; ++r) {
      const float* z = logits.data() + r * columns;
      double largest = z[0], partition = 0, mean = 0;
      for (int64_t v = 0; v < columns; ++v) largest = std::max(largest, double(z[v]));
      for (int64_t v = 0; v < columns; ++v) partition += std::exp(double(z[v]) - largest);
      double base = largest + std::log(partition);
      for (int64_t v = 0; v < columns; ++v) mean += off * (base - double(z[v]));
      double nll = mean + (1 - smoothing - off) * (base - double(z[labels[r]]));
      sum += double(weights[r]) * nll;
      count += double(weights[r]);
    }
    if (count > 0) total += sum / count;
  }
  return total;
}

}  // namespace

std::vector<float> Runner::logits(step::Engine& engine, const models::HostBatch& batch,
                                  const step::Engine::Prepare& prepare) const {
  const models::CappaOptions& o = *case_.model;
  const int64_t count = geometry_.micro_batch * o.length() * o.vocab_size;
  device::Ledger ledger;
  device::Buffer out(settings_.device, ledger, "logits", 4 * count);
  const device::View view = out.view(device::DType::f32).slice(0, count);
  auto& pass = engine.pass<LogitsPass>(kLogits);
  engine.forward(
      kLogits, batch,
      [&](nn::Context& ctx, const models::Inputs& inputs) { pass.run(ctx, inputs, view); },
      step::Weights::raw, prepare);
  std::vector<float> got(static_cast<size_t>(count));
  device::download(got.data(), view, engine.queue());
  return got;
}

void Runner::run_forward(step::Engine& engine, Report& report) const {
  const models::CappaOptions& o = *case_.model;
  int64_t row = o.length() * o.vocab_size, n = geometry_.micro_batch;
  std::vector<float> want = file_.floats("forward/logits", {case_.batch, o.length(), o.vocab_size});
  for (int64_t m = 0; m < geometry_.accumulation; ++m) {
    const std::vector<float> got = logits(engine, source(1)(m), preparation(engine, 1));
    int64_t first = geometry_.first_example(mesh_, m);
    report.compare("logits", "forward/logits", got.data(), want.data() + first * row, n * row,
                   tolerance("forward/logits"));
  }
}

void Runner::run_evaluation(step::Engine& engine, Report& report) const {
  const models::CappaOptions& o = *case_.model;
  auto& model = dynamic_cast<const models::Cappa&>(engine.model());
  // Without masked prediction, evaluation is the training forward pass.
  bool recorded = file_.has("forward/eval_logits");
  if (o.masked() && !recorded) return;
  std::string set = recorded ? "forward/eval_logits" : "forward/logits";
  std::string loss_set = recorded ? "forward/eval_loss" : "forward/loss";
  int64_t row = o.length() * o.vocab_size, n = geometry_.micro_batch;
  std::vector<float> want = file_.floats(set, {case_.batch, o.length(), o.vocab_size});
  std::vector<double> nll(static_cast<size_t>(n)), weight(static_cast<size_t>(n));
  double sums[2] = {};  // of losses from logits, and from the evaluation, which forms no logits
  for (int64_t m = 0; m < geometry_.accumulation; ++m) {
    int64_t first = geometry_.first_example(mesh_, m);
    models::HostBatch batch = host_batch(1, first, n, true);
    const std::vector<float> got =
        logits(engine, batch, [&](const models::HostBatch& all, const models::Inputs& into) {
          model.prepare(all, false, {}, into);
        });
    report.compare("eval logits", set, got.data(), want.data() + first * row, n * row,
                   tolerance(set));
    sums[0] +=
        loss_sum(got, batch.features.at("labels").i32(), engine.inputs().at("weights").host.f32(),
                 n, o.length(), o.vocab_size, o.label_smoothing);
    auto& score = engine.pass<models::ScorePass>(kScore);
    engine.forward(kScore, batch, [&](nn::Context& ctx, const models::Inputs& inputs) {
      score.run(ctx, inputs, nll.data(), weight.data());
    });
    for (size_t b = 0; b < nll.size(); ++b) sums[1] += weight[b] > 0 ? nll[b] / weight[b] : 0;
  }
  device::View all{sums, device::DType::f64, 2};
  mesh_.fsdp->all_reduce(all).wait();
  mesh_.replica->all_reduce(all).wait();
  double want_loss = double(file_.floats(loss_set, {})[0]), allowed = tolerance(loss_set);
  report.compare("eval loss", loss_set, sums[0] / double(case_.batch), want_loss, allowed);
  if (o.label_smoothing == 0)  // evaluation never smooths
    report.compare("eval loss (evaluate)", loss_set, sums[1] / double(case_.batch), want_loss,
                   allowed);
}

void Runner::run_features(step::Engine& engine, Report& report) const {
  auto& pass = engine.pass<models::EmbedPass>(kFeatures);
  const int64_t n = geometry_.micro_batch;
  for (int64_t m = 0; m < geometry_.accumulation; ++m) {
    const int64_t first = geometry_.first_example(mesh_, m);
    const models::HostBatch batch = host_batch(1, first, n, false);
    std::vector<std::vector<float>> got;
    std::vector<float*> features;
    for (const models::Tap& tap : pass.taps())
      features.push_back(got.emplace_back(size_t(n * tap.count())).data());
    engine.forward(kFeatures, batch, [&](nn::Context& ctx, const models::Inputs& inputs) {
      pass.run(ctx, inputs, features);
    });
    for (size_t t = 0; t < got.size(); ++t) {
      const models::Tap& tap = pass.taps()[t];
      const std::string set = "forward/" + tap.name;
      Shape shape = {case_.batch};
      shape.insert(shape.end(), tap.shape.begin(), tap.shape.end());
      const std::vector<float> want = file_.floats(set, shape);
      report.compare("features", set, got[t].data(), want.data() + first * tap.count(),
                     n * tap.count(), tolerance(set));
    }
  }
}

void Runner::compare_gradients(step::Engine& engine, Report& report) const {
  const shard::Layout& layout = engine.layout();
  for (int u = 0; u < int(layout.units().size()); ++u) {
    device::View mine = engine.owned_gradient(u);
    for (const shard::Segment& s :
         layout.segments(u, layout.owned_begin(u, mesh_.fsdp_index), layout.owned_count(u))) {
      const shard::Parameter& p = layout.parameters()[size_t(s.parameter)];
      std::string set = "grads/" + p.path;
      std::vector<float> want = file_.floats(set, p.shape);
      if (file_.rounding_noise_only(set))
        report.skip(set);
      else
        device::read_on_host(mine.slice(s.offset, s.count()), engine.queue(),
                             [&](device::View got) {
                               report.compare("gradients", p.path, got.f32(), want.data() + s.begin,
                                              s.count(), tolerance(set));
                             });
    }
  }
}

void Runner::run_model_case(step::Engine& engine, Report& report) const {
  run_forward(engine, report);
  step::StepReport step = engine.step(1, source(1), preparation(engine, 1));
  report.require("loss", "finite", step.finite);
  report.compare("loss", "forward/loss", step.loss(), double(file_.floats("forward/loss", {})[0]),
                 tolerance("forward/loss"));
  compare_gradients(engine, report);
  if (std::string set = "forward/loss_without_label_masks"; file_.has(set)) {
    step = engine.step(2, source(1, false), preparation(engine, 1));
    report.compare("loss without label masks", set, step.loss(), double(file_.floats(set, {})[0]),
                   tolerance(set));
  }
  run_evaluation(engine, report);
  run_features(engine, report);
}

}  // namespace golden
