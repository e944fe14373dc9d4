// SPDX-License-Identifier: Apache-2.0
#include "optim/adafactor.hpp"

#include <algorithm>
#include <numeric>

#include "base/elementary.hpp"
#include "kernels/square_sums.hpp"
#include "optim/element_state.hpp"
#include "optim/registry.hpp"

namespace optim {

void AdafactorOptions::bind(config::Table& t) {
  t.key("beta2_decay", beta2_decay,
        "second moments keep min(beta2_cap, 1 - t^-beta2_decay) of the past in update t")
      .above(0);
  t.key("beta2_cap", beta2_cap, "largest weight of the past").min(0).max(1);
  t.key("decay_offset", decay_offset,
        "updates to subtract from t, for training that starts from a later step")
      .min(0);
  t.key("momentum", momentum, "decay of the moving average of the scaled gradient; 0 = off")
      .min(0)
      .max(1);
  t.choice("momentum_type", momentum_type,
           {{"bf16", device::DType::bf16}, {"f32", device::DType::f32}}, "how momentum is stored")
      .on_resume(config::OnResume::never);
  t.key("factor_min", factor_min,
        "tensors whose second largest dimension is at least this are factored")
      .min(1)
      .on_resume(config::OnResume::never);
  t.key("eps", eps, "added to squared gradients").min(1e-37);
  t.key("clipping_threshold", clipping_threshold,
        "limits the RMS of each tensor's scaled gradient; 0 = off")
      .min(0);
  if (momentum == 1) t.error("momentum", "1 would ignore all gradients; give less than 1");
}

int64_t AdafactorOptions::element_state_bytes(const std::vector<int64_t>& shape) const {
  const int64_t v = factor(shape, factor_min).factored ? 0 : size_of(device::DType::f32);
  return v + (momentum > 0 ? size_of(momentum_type) : 0);
}

Factoring factor(const std::vector<int64_t>& shape, int64_t factor_min) {
  Factoring f;
  const size_t rank = shape.size();
  if (rank < 2) return f;
  std::vector<size_t> order(rank);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return shape[a] < shape[b]; });
  const size_t largest = order[rank - 1], second = order[rank - 2];
  if (shape[second] < factor_min) return f;
  f.factored = true;
  const size_t x = std::min(largest, second), y = std::max(largest, second);
  auto product = [&](size_t from, size_t to) {
    return std::accumulate(shape.begin() + int64_t(from), shape.begin() + int64_t(to), int64_t{1},
                           std::multiplies<>());
  };
  f.shape = {product(0, x),        shape[x],    product(x + 1, y), shape[y],
             product(y + 1, rank), largest == x};
  for (size_t d = 0; d < rank; ++d) {
    if (d != largest) f.v_row.push_back(shape[d]);
    if (d != second) f.v_col.push_back(shape[d]);
  }
  return f;
}

float adafactor_beta2(int64_t step, int64_t decay_offset, double decay, double cap) {
  const float t = std::max(float(step - 1 - decay_offset) + 1.0f, 1.0f);
  const float power =
      // computed in double: the rounded result has the same bits on every machine
      float(base::math::pow(double(t), double(float(-decay))));
  return std::min(float(cap), 1.0f - power);
}

namespace {

class Adafactor : public Method {
 public:
  Adafactor(const shard::Fabric& fabric, const Chosen& chosen, const AdafactorOptions& options);
  int64_t sums(int parameter) const override;
  void sum(const Piece& piece, device::View gradient, device::View sums) override;
  void run() override;
  void begin_step(const StepInfo& info, const TensorTotals& totals) override;
  int64_t measures(int) const override { return options_.clipping_threshold > 0 ? 1 : 0; }
  void measure(const Piece& piece, device::View weights, device::View gradient,
               device::View sum) override;
  void measured(const TensorTotals& totals) override;
  void update(const Piece& piece, const kernels::Update& update) override;
  void list_state(std::vector<shard::TensorSlice>& out) override;

 private:
  struct Tensor {
    Factoring factoring;
    int64_t offset = 0;  // its two vectors in the buffers
    kernels::RmsClip rms{};
  };
  // The two vectors of a factored tensor in `buffer`: over x, then over y.
  device::View over_x(const device::Buffer& buffer, const Tensor& t) const {
    return buffer.view(device::DType::f32).slice(t.offset, t.factoring.shape.over_x());
  }
  device::View over_y(const device::Buffer& buffer, const Tensor& t) const {
    return buffer.view(device::DType::f32)
        .slice(t.offset + t.factoring.shape.over_x(), t.factoring.shape.over_y());
  }
  kernels::AdafactorScaling scaling(const Piece& piece) const;
  float beta2(int parameter) const {
    return adafactor_beta2(info_.of(parameter).updates, options_.decay_offset, options_.beta2_decay,
                           options_.beta2_cap);
  }

  AdafactorOptions options_;
  device::DType momentum_type_;
  std::vector<Tensor> tensors_;  // by parameter
  // vectors of factored tensors, whole on every rank; factors_ lives for one update
  device::Buffer moments_, factors_;
  ElementState v_, momentum_;
  bool measured_ = false;  // measure has updated v, so update must keep it
  StepInfo info_;
  kernels::OpList<kernels::AdafactorSums> all_sums_;
  kernels::OpList<kernels::AdafactorFactors> all_factors_;
  kernels::OpList<kernels::AdafactorRms> measures_;
  kernels::OpList<kernels::AdafactorUpdate> updates_;
};

Adafactor::Adafactor(const shard::Fabric& fabric, const Chosen& chosen,
                     const AdafactorOptions& options)
    : Method(fabric, chosen), options_(options), momentum_type_(options.momentum_type) {
  const auto& parameters = fabric.layout.parameters();
  tensors_.resize(parameters.size());
  int64_t vectors = 0;
  for (size_t p = 0; p < parameters.size(); ++p) {
    Tensor& t = tensors_[p];
    if (!this->chosen(int(p))) continue;
    t.factoring = factor(parameters[p].shape, options.factor_min);
    if (!t.factoring.factored) continue;
    t.offset = vectors;
    vectors += t.factoring.shape.over_x() + t.factoring.shape.over_y();
  }
  const device::Kind kind = fabric.queue.kind();
  moments_ =
      device::Buffer(kind, fabric.ledger, "optimizer", vectors * size_of(device::DType::f32));
  factors_ =
      device::Buffer(kind, fabric.ledger, "workspace", vectors * size_of(device::DType::f32));
  v_ = ElementState(fabric, device::DType::f32, [this](int p) {
    return this->chosen(p) && !tensors_[size_t(p)].factoring.factored;
  });
  if (options.momentum > 0)
    momentum_ = ElementState(fabric, momentum_type_, [this](int p) { return this->chosen(p); });
}

int64_t Adafactor::sums(int parameter) const {
  const Factoring& f = tensors_[size_t(parameter)].factoring;
  return f.factored ? 1 + f.shape.over_x() + f.shape.over_y() : 1;
}

void Adafactor::sum(const Piece& piece, device::View gradient, device::View sums) {
  const Factoring& f = tensors_[size_t(piece.parameter)].factoring;
  if (!f.factored) return Method::sum(piece, gradient, sums);
  const int64_t x = f.shape.over_x(), y = f.shape.over_y();
  all_sums_.add(
      {sums.slice(0, 1), sums.slice(1, x), sums.slice(1 + x, y), gradient, piece.begin, f.shape});
}

void Adafactor::run() {
  Method::run();
  all_sums_.run(fabric_.queue);
  measures_.run(fabric_.queue);
  updates_.run(fabric_.queue);
}

void Adafactor::begin_step(const StepInfo& info, const TensorTotals& totals) {
  info_ = info;
  measured_ = false;
  for (size_t p = 0; p < tensors_.size(); ++p) {
    const Tensor& t = tensors_[p];
    if (!t.factoring.factored || !info.of(int(p)).updated()) continue;
    const device::View sums = totals.of(int(p));
    const int64_t x = t.factoring.shape.over_x(), y = t.factoring.shape.over_y();
    all_factors_.add({over_x(moments_, t), over_y(moments_, t), over_x(factors_, t),
                      over_y(factors_, t), sums.slice(1, x), sums.slice(1 + x, y),
                      t.factoring.shape, info.clip, beta2(int(p)), float(options_.eps)});
  }
  all_factors_.run(fabric_.queue);
}

kernels::AdafactorScaling Adafactor::scaling(const Piece& piece) const {
  const Tensor& t = tensors_[size_t(piece.parameter)];
  kernels::AdafactorScaling s;
  s.beta2 = measured_ ? 1 : beta2(piece.parameter);
  s.eps = float(options_.eps);
  if (t.factoring.factored) {
    s.factor_over_x = over_x(factors_, t);
    s.factor_over_y = over_y(factors_, t);
    s.shape = t.factoring.shape;
    s.begin = piece.begin;
  } else
    s.v = v_.of(piece);
  return s;
}

void Adafactor::measure(const Piece& piece, device::View, device::View gradient, device::View sum) {
  measures_.add({sum, gradient, info_.clip, scaling(piece)});
}

void Adafactor::measured(const TensorTotals& totals) {
  measured_ = true;
  for (size_t p = 0; p < tensors_.size(); ++p)
    if (chosen(int(p)))
      tensors_[p].rms = {totals.of(int(p)), fabric_.layout.parameters()[p].size,
                         float(options_.clipping_threshold)};
}

void Adafactor::update(const Piece& piece, const kernels::Update& update) {
  kernels::AdafactorUpdate a;
  a.update = update;
  a.scaling = scaling(piece);
  a.rms = tensors_[size_t(piece.parameter)].rms;
  if (options_.momentum > 0) {
    a.momentum = momentum_.of(piece);
    a.keep = state_coefficient(options_.momentum, momentum_type_);
    a.add = float(1.0 - options_.momentum);
  }
  updates_.add(a);
}

void Adafactor::list_state(std::vector<shard::TensorSlice>& out) {
  for (size_t p = 0; p < tensors_.size(); ++p) {
    if (!chosen(int(p))) continue;
    const Tensor& t = tensors_[p];
    const std::string& path = fabric_.layout.parameters()[p].path;
    if (t.factoring.factored) {
      // v_row is the mean over the largest dimension.
      const bool row_is_x = t.factoring.shape.x_is_largest;
      auto vector = [&](const char* name, const std::vector<int64_t>& shape, device::View v) {
        out.push_back({"/optimizer/adafactor/" + std::string(name) + "/" + path,
                       device::DType::f32,
                       shape,
                       {{0, v.count, v.data}},
                       writes_state(fabric_.mesh, false)});
      };
      vector("v_row", t.factoring.v_row, row_is_x ? over_x(moments_, t) : over_y(moments_, t));
      vector("v_col", t.factoring.v_col, row_is_x ? over_y(moments_, t) : over_x(moments_, t));
    } else {
      v_.list("/optimizer/adafactor/v", int(p), out);
    }
    if (options_.momentum > 0) momentum_.list("/optimizer/adafactor/momentum", int(p), out);
  }
}

}  // namespace

std::unique_ptr<Method> AdafactorOptions::make(const shard::Fabric& fabric,
                                               const Chosen& chosen) const {
  return std::make_unique<Adafactor>(fabric, chosen, *this);
}

MethodRow adafactor_row() {
  return {"adafactor", "big_vision's Adafactor: factored second moments, bfloat16 momentum",
          [] { return std::shared_ptr<MethodOptions>(std::make_shared<AdafactorOptions>()); }};
}

}  // namespace optim
