#include "optim/engine.hpp"

#include <cmath>
#include <regex>

#include "base/narrow.hpp"
#include "kernels/clip_gradient.hpp"

namespace optim {

void Method::sum(const Piece&, device::View gradient, device::View sums) {
  kernels::run(kernels::SquareSums{sums, gradient}, fabric_.queue);
}

Engine::Engine(shard::Fabric fabric, const OptimizerOptions& options, std::vector<ParameterPolicy> policies,
               std::vector<Schedule> schedules, const std::vector<std::string>& groups,
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
  CHECK(policies_.size() == parameters.size(), "{} policies for {} parameters", policies_.size(), parameters.size());
  std::vector<int64_t> of_gradients, one, two;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const bool trainable = layout.units()[size_t(parameters[p].unit)].trainable;
    CHECK(trainable != policies_[p].frozen, "{}: frozen here, trainable in its unit, or the reverse",
          parameters[p].path);
    CHECK(policies_[p].schedule >= 0 && policies_[p].schedule < int(schedules_.size()), "{}: no schedule",
          parameters[p].path);
    of_gradients.push_back(trainable ? method_->sums(int(p)) : 0);
    one.push_back(trainable), two.push_back(2);
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
  gradient_sums_ = std::make_unique<CutSums>(fabric, of_gradients);
  if (method_->measures()) measured_sums_ = std::make_unique<CutSums>(fabric, one);
  norm_sums_ = std::make_unique<CutSums>(fabric, two);

  for (const std::string& group : groups) {
    std::regex re(group);
    auto& members = groups_.emplace_back();
    for (size_t p = 0; p < parameters.size(); ++p)
      if (std::regex_match(parameters[p].path, re)) members.push_back(int(p));
  }
  for (Norms* n : {&inspection_.gradients, &report_.parameters, &report_.updates})
    n->per_parameter.assign(parameters.size(), 0), n->per_group.assign(groups_.size(), 0);
  report_.schedules.assign(schedules_.size(), 0);
  owned_.resize(layout.units().size());
  if (scale_options_) make_scale();
}

namespace {
// What the host learns of a step with a loss scale, as it lies in the queue's memory.
struct Scaled {
  double norm;
  float decision[4], state[4];  // three each: see op loss_scale
};
}  // namespace

void Engine::make_scale() {
  std::vector<int32_t> places;
  const auto& parameters = fabric_.layout.parameters();
  for (size_t p = 0; p < parameters.size(); ++p)
    if (gradient_sums_->of(int(p)).count > 0) places.push_back(base::narrow<int32_t>(gradient_sums_->place(int(p))));
  const device::Kind kind = fabric_.queue.kind();
  places_buffer_ = device::Buffer(kind, fabric_.ledger, "workspace", int64_t(places.size()) * size_of(device::DType::i32));
  places_ = places_buffer_.view(device::DType::i32).slice(0, int64_t(places.size()));
  scale_ = device::Buffer(kind, fabric_.ledger, "workspace", sizeof(Scaled));
  device::upload(places_, places.data(), fabric_.queue);
  set_scale_state({scale_options_->init, 0});
}

device::View Engine::scale_norm() const { return scale_.view(device::DType::f64).slice(0, 1); }
device::View Engine::scale_decision() const { return scale_.view(device::DType::f32).slice(2, 3); }
device::View Engine::scale_memory() const { return scale_.view(device::DType::f32).slice(6, 3); }
device::View Engine::loss_scale() const { return scale_options_ ? scale_memory().slice(0, 1) : device::View{}; }

Engine::ScaleState Engine::scale_state() {
  if (!scale_options_ || !real()) return {};
  float state[2];
  device::download(state, scale_memory().slice(0, 2), fabric_.queue);
  return {double(state[0]), double(state[1])};
}

void Engine::set_scale_state(const ScaleState& state) {
  const float values[2] = {float(state.scale), float(state.updates)};
  device::upload(scale_memory().slice(0, 2), values, fabric_.queue);
}

// Norms from the sums of squares at place `which` of each tensor's sums, added in the order of the parameters.
void Engine::fill(Norms& norms, const CutSums& sums, int64_t which, double scale) {
  if (!real()) return;
  double total = 0;
  for (size_t p = 0; p < norms.per_parameter.size(); ++p) {
    const bool has = sums.of(int(p)).count > which;
    const double square = has ? sums.value(int(p), which) / (scale * scale) : 0;
    norms.per_parameter[p] = square;
    total += square;
  }
  norms.global = std::sqrt(total);
  for (size_t g = 0; g < groups_.size(); ++g) {
    double square = 0;
    for (int p : groups_[g]) square += norms.per_parameter[size_t(p)];
    norms.per_group[g] = std::sqrt(square);
  }
  for (double& n : norms.per_parameter) n = std::sqrt(n);
}

const Inspection& Engine::inspect(std::span<const OwnedUnit> units) {
  CHECK(units.size() == owned_.size(), "{} of {} units to inspect", units.size(), owned_.size());
  for (OwnedUnit& u : owned_) u.unit = -1;
  for (const OwnedUnit& u : units) {
    CHECK(u.unit >= 0 && u.unit < int(owned_.size()) && owned_[size_t(u.unit)].unit < 0, "unit {} twice or unknown",
          u.unit);
    const int64_t count = fabric_.layout.owned_count(u.unit);
    CHECK(u.weights.count == count, "unit {}: {} weights, {} owned", u.unit, u.weights.count, count);
    CHECK(!fabric_.layout.units()[size_t(u.unit)].trainable || u.gradient.count == count, "unit {}: {} gradients",
          u.unit, u.gradient.count);
    owned_[size_t(u.unit)] = u;
  }
  for (size_t u = 0; u < owned_.size(); ++u)
    gradient_sums_->sum_unit(int(u), pieces_[u], [&](const Piece& piece, device::View sums) {
      method_->sum(piece, owned_[u].gradient.slice(piece.offset, piece.count()), sums);
    });
  gradient_sums_->exchange();
  inspected_ = true;
  if (scale_options_) {
    inspect_scaled();
    return inspection_;
  }

  fill(inspection_.gradients, *gradient_sums_, 0);
  inspection_.finite = std::isfinite(inspection_.gradients.global);
  // The norm is compared and divided by in float, as optax does; at the bound itself the gradient counts as clipped.
  const float norm = float(inspection_.gradients.global), bound = float(clip_norm_);
  const bool clipped = bound > 0 && !(norm < bound);
  info_.clip.divisor = clipped ? norm : 1.0f;
  info_.clip.factor = clipped ? bound : 1.0f;
  inspection_.clip = double(info_.clip.factor) / double(info_.clip.divisor);
  return inspection_;
}

// Every rank has the same sums, so every rank finds an overflow, and moves the scale, alike.
void Engine::inspect_scaled() {
  kernels::run(kernels::ClipGradient{.decision = scale_decision(),
                                     .norm = scale_norm(),
                                     .squares = gradient_sums_->all(),
                                     .places = places_},
               fabric_.queue);
  kernels::run(kernels::LossScale{scale_decision(), scale_norm(), scale_memory(), float(clip_norm_), scale_options_->rule()},
               fabric_.queue);
  info_.clip.decided = scale_decision();
  if (!real()) return;
  Scaled found;
  device::download(&found, {scale_.data(), device::DType::u8, int64_t(sizeof found)}, fabric_.queue);
  const double scale = double(found.state[2]);
  fill(inspection_.gradients, *gradient_sums_, 0, scale);
  inspection_.finite = found.decision[2] != 0;
  inspection_.clip = double(found.decision[1]) / double(found.decision[0]) * scale;
  inspection_.loss_scale = scale, inspection_.next_loss_scale = double(found.state[0]);
}

const kernels::Update& Engine::prepare(const Piece& piece, device::View sums) {
  const OwnedUnit& owned = owned_[size_t(piece.unit)];
  const ParameterPolicy& policy = policies_[size_t(piece.parameter)];
  update_.weights = owned.weights.slice(piece.offset, piece.count());
  update_.gradient = owned.gradient.slice(piece.offset, piece.count());
  update_.sums = sums;
  update_.clip = info_.clip;
  update_.rate = float(learning_rate_ * policy.lr_scale);
  update_.decay = float(weight_decay_ * policy.decay_scale);
  update_.schedule = report_.schedules[size_t(policy.schedule)];
  return update_;
}

const UpdateReport& Engine::apply(int64_t step) {
  CHECK(inspected_ && inspection_.finite, "apply needs an inspection that found finite gradients");
  CHECK(step >= 1, "the first step is 1, not {}", step);
  inspected_ = false;
  info_.step = step;
  for (size_t s = 0; s < schedules_.size(); ++s) report_.schedules[s] = schedules_[s].at(step - 1);
  method_->begin_step(info_, *gradient_sums_);
  if (measured_sums_) {
    for (size_t u = 0; u < owned_.size(); ++u)
      measured_sums_->sum_unit(int(u), pieces_[u], [&](const Piece& piece, device::View sum) {
        method_->measure(piece, owned_[u].gradient.slice(piece.offset, piece.count()), sum);
      });
    measured_sums_->exchange();
    method_->measured(*measured_sums_);
  }
  for (size_t u = 0; u < owned_.size(); ++u) {
    const bool trainable = fabric_.layout.units()[u].trainable;
    norm_sums_->sum_unit(int(u), pieces_[u], [&](const Piece& piece, device::View sums) {
      if (trainable)
        method_->update(piece, prepare(piece, sums));
      else
        kernels::run(kernels::SquareSums{sums.slice(0, 1), owned_[u].weights.slice(piece.offset, piece.count())},
                     fabric_.queue);
    });
  }
  norm_sums_->exchange();
  fill(report_.parameters, *norm_sums_, 0);
  fill(report_.updates, *norm_sums_, 1);
  return report_;
}

std::vector<shard::TensorSlice> Engine::state() {
  std::vector<shard::TensorSlice> out;
  method_->list_state(out);
  return out;
}

}  // namespace optim
