// SPDX-License-Identifier: Apache-2.0
#include "optim/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <regex>

#include "base/narrow.hpp"
#include "kernels/clip_gradient.hpp"

namespace optim {

Optimizer::Optimizer(shard::Fabric fabric, const OptimizerOptions& options,
                     std::vector<ParameterPolicy> policies, std::vector<Schedule> schedules,
                     const std::vector<std::string>& groups,
                     const std::optional<LossScaleOptions>& loss_scale)
    : fabric_(fabric),
      learning_rate_(options.learning_rate),
      weight_decay_(options.weight_decay),
      clip_norm_(options.clip_norm),
      policies_(std::move(policies)),
      schedules_(std::move(schedules)),
      method_(options.method_options().make(fabric)),
      scale_options_(loss_scale) {
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
    CHECK(policies_[p].schedule >= 0 && policies_[p].schedule < int(schedules_.size()),
          "{}: no schedule", parameters[p].path);
    gradient_widths.push_back(trained ? method_->sums(int(p)) : 0);
    measure_widths.push_back(trained ? method_->measures(int(p)) : 0);
    norm_widths.push_back(state ? 0 : 2);  // the norm of all parameters leaves state out
  }
  for (int u = 0; u < int(layout.units().size()); ++u) {
    auto& cuts = pieces_.emplace_back();
    const int64_t length = layout.units()[size_t(u)].cut_length(),
                  first = layout.owned_begin(u, fabric.mesh.fsdp_index);
    for (int64_t c = 0; c < layout.owned_cuts(u); ++c) {
      auto& cut = cuts.emplace_back();
      for (const shard::Segment& s : layout.segments(u, first + c * length, length))
        cut.push_back({u, s.parameter, s.begin, s.end, c * length + s.offset});
    }
  }
  gradient_sums_ = std::make_unique<CutSums>(fabric, gradient_widths);
  if (std::any_of(measure_widths.begin(), measure_widths.end(), [](int64_t n) { return n > 0; }))
    measured_sums_ = std::make_unique<CutSums>(fabric, measure_widths);
  norm_sums_ = std::make_unique<CutSums>(fabric, norm_widths);

  for (const std::string& group : groups) {
    std::regex re(group);
    auto& members = groups_.emplace_back();
    for (size_t p = 0; p < parameters.size(); ++p)
      if (std::regex_match(parameters[p].path, re)) members.push_back(int(p));
  }
  std::vector<int32_t> square_index;
  for (size_t p = 0; p < parameters.size(); ++p)
    if (gradient_widths[p] > 0)
      square_index.push_back(base::narrow<int32_t>(gradient_sums_->offset(int(p))));
  const device::Kind kind = fabric.queue.kind();
  square_index_buffer_ = device::Buffer(kind, fabric.ledger, "workspace",
                                        int64_t(square_index.size()) * size_of(device::DType::i32));
  square_index_ =
      square_index_buffer_.view(device::DType::i32).slice(0, int64_t(square_index.size()));
  device::upload(square_index_, square_index.data(), fabric.queue);
  inspection_ = device::Buffer(kind, fabric.ledger, "workspace",
                               (1 + square_index_.count + 4) * size_of(device::DType::f64));
  info_.clip.decided = decision();
  host_inspection_ = device::Fetched(kind, inspection_.bytes());
  host_norms_ = device::Fetched(kind, norm_sums_->all().bytes());

  for (Norms* n :
       {&report_.gradients.gradients, &report_.update.parameters, &report_.update.updates}) {
    n->per_parameter.assign(parameters.size(), 0);
    n->per_group.assign(groups_.size(), 0);
  }
  for (std::vector<float>& values : schedule_values_) values.assign(schedules_.size(), 0);
  report_.update.schedules.assign(schedules_.size(), 0);
  owned_.resize(layout.units().size());
  if (scale_options_) set_scale_state({scale_options_->init, 0});
}

device::View Optimizer::loss_scale() const {
  return scale_options_ ? scale_memory().slice(0, 1) : device::View{};
}

Optimizer::ScaleState Optimizer::scale_state() {
  if (!scale_options_ || fabric_.queue.kind() == device::Kind::plan) return {};
  float state[2];
  device::download(state, scale_memory().slice(0, 2), fabric_.queue);
  return {double(state[0]), double(state[1])};
}

void Optimizer::set_scale_state(const ScaleState& state) {
  const float values[2] = {float(state.scale), float(state.updates)};
  device::upload(scale_memory().slice(0, 2), values, fabric_.queue);
}

// Returns the decision (0) or the loss scale (1): three floats in the place of two doubles, behind
// the squares.
device::View Optimizer::inspection_floats(int64_t which) const {
  const device::View words =
      inspection_.view(device::DType::f64).slice(1 + square_index_.count + 2 * which, 2);
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
  CHECK(units.size() == owned_.size(), "{} of {} units to inspect", units.size(), owned_.size());
  for (OwnedUnit& u : owned_) u.unit = -1;
  for (const OwnedUnit& u : units) {
    CHECK(u.unit >= 0 && u.unit < int(owned_.size()) && owned_[size_t(u.unit)].unit < 0,
          "unit {} twice or unknown", u.unit);
    const int64_t count = fabric_.layout.owned_count(u.unit);
    CHECK(u.weights.count == count, "unit {}: {} weights, {} owned", u.unit, u.weights.count,
          count);
    CHECK(!fabric_.layout.units()[size_t(u.unit)].trained() || u.gradient.count == count,
          "unit {}: {} gradients", u.unit, u.gradient.count);
    owned_[size_t(u.unit)] = u;
  }
  gradient_sums_->sum(
      pieces_,
      [&](const Piece& piece, device::View sums) { method_->sum(piece, gradient(piece), sums); },
      [&] { method_->run(); });
  gradient_sums_->exchange();
  kernels::run(kernels::ClipGradient{.decision = decision(),
                                     .norm = norm(),
                                     .squares = gradient_sums_->all(),
                                     .places = square_index_,
                                     .must_be_finite = loss,
                                     .found = squares(),
                                     .bound = scale_options_ ? 0 : float(clip_norm_)},
               fabric_.queue);
  // Every rank has the same sums, so all ranks find the same overflow and change the scale alike.
  if (scale_options_)
    kernels::run(kernels::LossScale{decision(), norm(), scale_memory(), float(clip_norm_),
                                    scale_options_->rule()},
                 fabric_.queue);
  host_inspection_.fetch(step, {inspection_.data(), device::DType::u8, inspection_.bytes()},
                         fabric_.queue);
  inspected_ = step;
}

device::View Optimizer::weights(const Piece& piece) const {
  return owned_[size_t(piece.unit)].weights.slice(piece.offset, piece.count());
}

device::View Optimizer::gradient(const Piece& piece) const {
  return owned_[size_t(piece.unit)].gradient.slice(piece.offset, piece.count());
}

const kernels::Update& Optimizer::prepare(const Piece& piece, device::View sums) {
  const ParameterPolicy& policy = policies_[size_t(piece.parameter)];
  update_.weights = weights(piece);
  update_.gradient = gradient(piece);
  update_.sums = sums;
  update_.clip = info_.clip;
  update_.rate = float(learning_rate_ * policy.lr_scale);
  update_.decay = float(weight_decay_ * policy.decay_scale);
  update_.schedule = schedule_values_[info_.step][size_t(policy.schedule)];
  return update_;
}

void Optimizer::apply(int64_t step) {
  CHECK(inspected_ == step && step >= 1, "apply of step {} needs its inspection", step);
  inspected_ = 0;
  info_.step = step;
  for (size_t s = 0; s < schedules_.size(); ++s)
    schedule_values_[step][s] = schedules_[s].at(step - 1);
  method_->begin_step(info_, *gradient_sums_);
  if (measured_sums_) {
    measured_sums_->sum(
        pieces_,
        [&](const Piece& piece, device::View sums) {
          if (sums.count > 0) method_->measure(piece, weights(piece), gradient(piece), sums);
        },
        [&] { method_->run(); });
    measured_sums_->exchange();
    method_->measured(*measured_sums_);
  }
  norm_sums_->sum(
      pieces_,
      [&](const Piece& piece, device::View sums) {
        if (fabric_.layout.units()[size_t(piece.unit)].trained())
          method_->update(piece, prepare(piece, sums));
        else
          frozen_.add({sums.slice(0, 1), weights(piece)});
      },
      [&] {
        method_->run();
        frozen_.run(fabric_.queue);
      });
  norm_sums_->exchange();
  host_norms_.fetch(step, norm_sums_->all(), fabric_.queue);
}

const Report& Optimizer::report(int64_t step) {
  report_.update.schedules = schedule_values_[step];
  if (fabric_.queue.kind() == device::Kind::plan) return report_;
  const device::View inspection = host_inspection_.read(step);
  const auto* gradient_squares = static_cast<const double*>(inspection.data) + 1;
  const auto* decided = reinterpret_cast<const float*>(gradient_squares + square_index_.count);
  const float* scales = decided + 4;
  const double scale = scale_options_ ? double(scales[2]) : 1;
  if (scale_options_) {
    report_.gradients.loss_scale = scale;
    report_.gradients.next_loss_scale = double(scales[0]);
  }
  fill(report_.gradients.gradients, [&, next = int64_t{0}](int p) mutable {
    return policies_[size_t(p)].frozen ? 0 : gradient_squares[next++] / (scale * scale);
  });
  report_.gradients.clip = double(decided[1]) / double(decided[0]) * scale;
  report_.gradients.applied = decided[2] != 0;
  const device::View norms = host_norms_.read(step);
  auto square = [&](int p, int which) {
    const device::View sums = norm_sums_->of(p);
    return sums.count > 0 ? norms.f64()[norm_sums_->offset(p) + which] : 0;
  };
  fill(report_.update.parameters, [&](int p) { return square(p, 0); });
  fill(report_.update.updates, [&](int p) { return square(p, 1); });
  return report_;
}

std::vector<shard::TensorSlice> Optimizer::state() {
  std::vector<shard::TensorSlice> out;
  method_->list_state(out);
  return out;
}

}  // namespace optim
