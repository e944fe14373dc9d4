// SPDX-License-Identifier: Apache-2.0
#include "optim/optimizer.hpp"

#include <algorithm>
#include <cmath>

#include "base/narrow.hpp"
#include "base/pattern.hpp"
#include "kernels/clip_gradient.hpp"
#include "optim/by_rule.hpp"

namespace optim {

namespace {

std::unique_ptr<Method> make_method(const shard::Fabric& fabric, const OptimizerOptions& options,
                                    const std::vector<ParameterPolicy>& policies) {
  std::vector<int> rules;  // rules whose optimizers update something; -1: [optimizer] itself
  std::vector<int> of;     // by parameter: index of its method; frozen parameters have the first
  for (const ParameterPolicy& policy : policies) {
    const auto at = std::find(rules.begin(), rules.end(), policy.rule);
    of.push_back(policy.frozen ? 0 : int(at - rules.begin()));
    if (!policy.frozen && at == rules.end()) rules.push_back(policy.rule);
  }
  if (rules.empty()) rules.push_back(-1);
  std::vector<std::unique_ptr<Method>> methods;
  for (size_t m = 0; m < rules.size(); ++m) {
    Chosen chosen;
    for (const int one : of) chosen.push_back(one == int(m));
    methods.push_back(options.method_options(rules[m]).make(fabric, chosen));
  }
  std::unique_ptr<Method> method = methods.size() == 1
                                       ? std::move(methods[0])
                                       : make_by_rule(fabric, std::move(of), std::move(methods));
  if (!options.trust) return method;
  std::vector<bool> scales;
  for (const ParameterPolicy& policy : policies) scales.push_back(policy.trust);
  return make_trust(fabric, *options.trust, scales, std::move(method));
}

}  // namespace

Optimizer::Optimizer(shard::Fabric fabric, const OptimizerOptions& options,
                     std::vector<ParameterPolicy> policies, std::vector<Schedule> schedules,
                     const std::vector<std::string>& groups,
                     const std::optional<LossScaleOptions>& loss_scale)
    : fabric_(fabric),
      factors_{options.learning_rate, options.weight_decay, options.decay_form},
      policies_(std::move(policies)),
      schedules_{std::move(schedules), {}},
      method_(make_method(fabric, options, policies_)),
      pieces_(owned_pieces(fabric)),
      limits_{options.clip_norm, options.drop_norm,
              options.clip_type == ClipType::infinity ? std::make_unique<InfinityNorms>(fabric)
                                                      : nullptr,
              loss_scale},
      row_norms_(fabric) {
  const shard::Layout& layout = fabric.layout;
  const auto& parameters = layout.parameters();
  CHECK(policies_.size() == parameters.size(), "{} policies for {} parameters", policies_.size(),
        parameters.size());
  std::vector<int64_t> gradient_widths, measure_widths, norm_widths;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const shard::ParameterKind kind = layout.units()[size_t(parameters[p].unit)].kind;
    const bool trained = kind == shard::ParameterKind::trained,
               state = kind == shard::ParameterKind::state;
    CHECK(trained != policies_[p].frozen, "{}: frozen here, trained in its unit, or the reverse",
          parameters[p].path);
    const int count = int(schedules_.list.size());
    CHECK(policies_[p].schedule >= 0 && policies_[p].schedule < count &&
              policies_[p].decay_schedule < count,
          "{}: no schedule", parameters[p].path);
    gradient_widths.push_back(trained ? method_->sums(int(p)) : 0);
    measure_widths.push_back(trained ? method_->measures(int(p)) : 0);
    norm_widths.push_back(state ? 0 : 2);  // the norm of all parameters leaves state out
  }
  sums_.gradients = std::make_unique<CutSums>(fabric, gradient_widths);
  if (std::any_of(measure_widths.begin(), measure_widths.end(), [](int64_t n) { return n > 0; }))
    sums_.measures = std::make_unique<CutSums>(fabric, measure_widths);
  sums_.norms = std::make_unique<CutSums>(fabric, norm_widths);

  for (const std::string& group : groups) {
    const base::Pattern pattern(group);
    auto& members = groups_.emplace_back();
    for (size_t p = 0; p < parameters.size(); ++p)
      if (pattern.matches(parameters[p].path)) members.push_back(int(p));
  }
  make_inspection(gradient_widths);
  for (Norms* n :
       {&report_.gradients.gradients, &report_.update.parameters, &report_.update.updates}) {
    n->per_parameter.assign(parameters.size(), 0);
    n->per_group.assign(groups_.size(), 0);
  }
  for (std::vector<float>& values : schedules_.values) values.assign(schedules_.list.size(), 0);
  report_.update.schedules.assign(schedules_.list.size(), 0);
  current_.owned.resize(layout.units().size());
  current_.tensors.resize(parameters.size());
  current_.info = {.clip = {.decided = decision()}, .tensors = current_.tensors};
  if (limits_.scale) set_scale_state({limits_.scale->init, 0});
}

void Optimizer::make_inspection(const std::vector<int64_t>& gradient_widths) {
  std::vector<int32_t> square_index;
  for (size_t p = 0; p < gradient_widths.size(); ++p)
    if (gradient_widths[p] > 0)
      square_index.push_back(base::narrow<int32_t>(sums_.gradients->offset(int(p))));
  const device::Kind kind = fabric_.queue.kind();
  inspection_.square_index_memory =
      device::Buffer(kind, fabric_.ledger, "workspace",
                     int64_t(square_index.size()) * size_of(device::DType::i32));
  inspection_.square_index = inspection_.square_index_memory.view(device::DType::i32)
                                 .slice(0, int64_t(square_index.size()));
  device::upload(inspection_.square_index, square_index.data(), fabric_.queue);
  inspection_.memory =
      device::Buffer(kind, fabric_.ledger, "workspace",
                     (1 + inspection_.square_index.count + 4) * size_of(device::DType::f64));
  inspection_.on_host = device::Fetched(kind, inspection_.memory.bytes());
  sums_.norms_on_host = device::Fetched(kind, sums_.norms->all().bytes());
}

device::View Optimizer::loss_scale() const {
  return limits_.scale ? inspection_.loss_scale().slice(0, 1) : device::View{};
}

Optimizer::ScaleState Optimizer::scale_state() {
  if (!limits_.scale || fabric_.queue.kind() == device::Kind::plan) return {};
  float state[2];
  device::download(state, inspection_.loss_scale().slice(0, 2), fabric_.queue);
  return {double(state[0]), double(state[1])};
}

void Optimizer::set_scale_state(const ScaleState& state) {
  const float values[2] = {float(state.scale), float(state.updates)};
  device::upload(inspection_.loss_scale().slice(0, 2), values, fabric_.queue);
}

// Returns the decision (0) or the loss scale (1): three floats in the place of two doubles, after
// the squares.
device::View Optimizer::InspectionWords::floats(int64_t which) const {
  const device::View words =
      memory.view(device::DType::f64).slice(1 + square_index.count + 2 * which, 2);
  return {words.data, device::DType::f32, 3};
}

// Squares are added in the order of the parameters.
template <class Square>
void Optimizer::fill(Norms& norms, Square square_of) {
  double total = 0;
  for (size_t p = 0; p < norms.per_parameter.size(); ++p)
    total += norms.per_parameter[p] = square_of(int(p));
  norms.global = std::sqrt(total);
  for (size_t g = 0; g < groups_.size(); ++g) {
    double square = 0;
    for (int p : groups_[g]) square += norms.per_parameter[size_t(p)];
    norms.per_group[g] = std::sqrt(square);
  }
  for (double& n : norms.per_parameter) n = std::sqrt(n);
}

void Optimizer::inspect(int64_t step, std::span<const OwnedUnit> units, device::View loss) {
  CHECK(step >= 1, "the first step is 1, not {}", step);
  CHECK(units.size() == current_.owned.size(), "{} of {} units to inspect", units.size(),
        current_.owned.size());
  for (OwnedUnit& u : current_.owned) u.unit = -1;
  for (const OwnedUnit& u : units) {
    CHECK(u.unit >= 0 && u.unit < int(current_.owned.size()) &&
              current_.owned[size_t(u.unit)].unit < 0,
          "unit {} twice or unknown", u.unit);
    const int64_t count = fabric_.layout.owned_count(u.unit);
    CHECK(u.weights.count == count, "unit {}: {} weights, {} owned", u.unit, u.weights.count,
          count);
    CHECK(!fabric_.layout.units()[size_t(u.unit)].trained() || u.gradient.count == count,
          "unit {}: {} gradients", u.unit, u.gradient.count);
    current_.owned[size_t(u.unit)] = u;
  }
  begin(step);
  sums_.gradients->sum(
      pieces_,
      [&](const Piece& piece, device::View sums) {
        if (current_.info.of(piece.parameter).updated()) method_->sum(piece, gradient(piece), sums);
      },
      [&] { method_->run(); });
  sums_.gradients->exchange();
  if (limits_.infinity)
    limits_.infinity->find([this](const Piece& piece) {
      return current_.info.of(piece.parameter).updated() ? gradient(piece) : device::View{};
    });
  decide(loss);
  inspection_.on_host.fetch(
      step, {inspection_.memory.data(), device::DType::u8, inspection_.memory.bytes()},
      fabric_.queue);
  current_.inspected = step;
}

// Evaluates the schedules of a step, and the numbers of each tensor that follow from them.
void Optimizer::begin(int64_t step) {
  current_.info.step = step;
  std::vector<float>& schedules = schedules_.values[step];
  for (size_t s = 0; s < schedules_.list.size(); ++s)
    schedules[s] = schedules_.list[s].at(step - 1);
  for (size_t p = 0; p < policies_.size(); ++p) {
    const ParameterPolicy& policy = policies_[p];
    const double rate = factors_.learning_rate * policy.lr_scale;
    double decay = factors_.weight_decay * policy.decay_scale;
    if (policy.decay_schedule >= 0) decay *= double(schedules[size_t(policy.decay_schedule)]);
    if (factors_.decay_form == DecayForm::rate) decay *= rate;
    const bool inner = factors_.decay_form == DecayForm::gradient;
    current_.tensors[p] = {
        .updates = policy.frozen ? 0 : std::max<int64_t>(0, step - policy.frozen_steps),
        .rate = float(rate),
        .decay = inner ? 0 : float(decay),
        .schedule = schedules[size_t(policy.schedule)],
        .inner_decay = inner ? float(decay) : 0};
  }
}

void Optimizer::decide(device::View loss) {
  const bool scaled = limits_.scale.has_value();
  const auto bound = float(limits_.clip_norm), drop = float(limits_.drop_norm);
  kernels::run(kernels::ClipGradient{.decision = decision(),
                                     .norm = inspection_.norm(),
                                     .squares = sums_.gradients->all(),
                                     .places = inspection_.square_index,
                                     .must_be_finite = loss,
                                     .found = inspection_.squares(),
                                     .largest = limits_.largest(),
                                     .bound = scaled ? 0 : bound,
                                     .drop = scaled ? 0 : drop},
               fabric_.queue);
  // Every rank has the same sums, so all ranks find the same overflow and change the scale alike.
  if (scaled)
    kernels::run(kernels::LossScale{.decision = decision(),
                                    .norm = inspection_.norm(),
                                    .state = inspection_.loss_scale(),
                                    .largest = limits_.largest(),
                                    .bound = bound,
                                    .drop = drop,
                                    .rule = limits_.scale->rule()},
                 fabric_.queue);
}

device::View Optimizer::weights(const Piece& piece) const {
  return current_.owned[size_t(piece.unit)].weights.slice(piece.offset, piece.count());
}

device::View Optimizer::gradient(const Piece& piece) const {
  return current_.owned[size_t(piece.unit)].gradient.slice(piece.offset, piece.count());
}

kernels::Update Optimizer::update_of(const Piece& piece, device::View sums) const {
  const TensorStep& tensor = current_.info.of(piece.parameter);
  kernels::Update update;
  update.weights = weights(piece);
  update.gradient = gradient(piece);
  update.sums = sums;
  update.clip = current_.info.clip;
  update.rate = tensor.rate;
  update.decay = tensor.decay;
  update.schedule = tensor.schedule;
  update.inner.decay = tensor.inner_decay;
  return update;
}

void Optimizer::apply(int64_t step) {
  CHECK(current_.inspected == step && step >= 1, "apply of step {} needs its inspection", step);
  current_.inspected = 0;
  method_->begin_step(current_.info, *sums_.gradients);
  if (sums_.measures) {
    sums_.measures->sum(
        pieces_,
        [&](const Piece& piece, device::View sums) {
          if (sums.count > 0 && current_.info.of(piece.parameter).updated())
            method_->measure(piece, weights(piece), gradient(piece), sums);
        },
        [&] { method_->run(); });
    sums_.measures->exchange();
    method_->measured(*sums_.measures);
  }
  sums_.norms->sum(
      pieces_,
      [&](const Piece& piece, device::View sums) {
        if (current_.info.of(piece.parameter).updated())
          method_->update(piece, update_of(piece, sums));
        else
          unchanged_.add({sums.slice(0, 1), weights(piece)});
      },
      [&] {
        method_->run();
        unchanged_.run(fabric_.queue);
      });
  row_norms_.normalise(
      pieces_, [this](const Piece& piece) { return weights(piece); }, decision());
  sums_.norms->exchange();
  sums_.norms_on_host.fetch(step, sums_.norms->all(), fabric_.queue);
}

const Report& Optimizer::report(int64_t step) {
  report_.update.schedules = schedules_.values[step];
  if (fabric_.queue.kind() == device::Kind::plan) return report_;
  const device::View inspection = inspection_.on_host.read(step);
  const auto* gradient_squares = static_cast<const double*>(inspection.data) + 1;
  const auto* decided =
      reinterpret_cast<const float*>(gradient_squares + inspection_.square_index.count);
  const float* scales = decided + 4;
  const double scale = limits_.scale ? double(scales[2]) : 1;
  if (limits_.scale) {
    report_.gradients.loss_scale = scale;
    report_.gradients.next_loss_scale = double(scales[0]);
  }
  fill(report_.gradients.gradients, [&, next = int64_t{0}](int p) mutable {
    return policies_[size_t(p)].frozen ? 0 : gradient_squares[next++] / (scale * scale);
  });
  report_.gradients.clip = double(decided[1]) / double(decided[0]) * scale;
  report_.gradients.applied = decided[2] != 0;
  const device::View norms = sums_.norms_on_host.read(step);
  auto square = [&](int p, int which) {
    const device::View sums = sums_.norms->of(p);
    return sums.count > 0 ? norms.f64()[sums_.norms->offset(p) + which] : 0;
  };
  // Squares are formed before rows are normalised. After that, each row has the length 1.
  fill(report_.update.parameters, [&](int p) {
    const int64_t rows = report_.gradients.applied ? row_norms_.rows(p) : 0;
    return rows > 0 ? double(rows) : square(p, 0);
  });
  fill(report_.update.updates, [&](int p) { return square(p, 1); });
  return report_;
}

std::vector<shard::TensorSlice> Optimizer::state() {
  std::vector<shard::TensorSlice> out;
  method_->list_state(out);
  return out;
}

}  // namespace optim
