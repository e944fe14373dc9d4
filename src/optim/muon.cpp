// SPDX-License-Identifier: Apache-2.0
#include "optim/muon.hpp"

#include <algorithm>
#include <cmath>

#include "base/text.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/momentum_update.hpp"
#include "optim/element_state.hpp"
#include "optim/orthogonal.hpp"
#include "optim/registry.hpp"

namespace optim {

void MuonOptions::bind(config::Table& t) {
  t.key("momentum", momentum, "share of the sum of gradients that each update keeps").min(0).max(1);
  t.key("nesterov", nesterov, "look one step ahead along the sum");
  t.key("steps", steps, "Newton-Schulz steps that make a direction orthogonal").min(1).max(30);
  t.choice("scaling", scaling,
           {{"original", Scaling::original},
            {"match_adamw", Scaling::match_adamw},
            {"none", Scaling::none}},
           "the size of a direction from in to out numbers: original: sqrt(max(1, out/in)); "
           "match_adamw: 0.2 sqrt(max(in, out)), for learning rates of AdamW; none: 1");
  t.choice("momentum_type", momentum_type,
           {{"f32", device::DType::f32}, {"bf16", device::DType::bf16}},
           "how the sum of gradients is stored")
      .on_resume(config::OnResume::never);
}

std::string MuonOptions::problem(const shard::Parameter& parameter) const {
  if (parameter.shape.size() >= 2) return "";
  return fmt::format(
      "muon updates matrices, and {} has {} axis: name another optimizer for it in an "
      "[[optimizer.rule]] (kind = \"adamw\")",
      parameter.path, parameter.shape.size());
}

MatrixShape matrix_shape(const shard::Parameter& parameter) {
  const std::vector<int64_t>& shape = parameter.shape;
  const int64_t count = parameter.count(), fan_in = parameter.init.fan_in;
  for (const bool first : {true, false}) {  // inputs first, then outputs first
    int64_t rows = 1;
    for (size_t axis = 0; axis + 1 < shape.size(); ++axis) {
      rows *= shape[axis];
      if (const int64_t columns = count / rows; fan_in > 0 && (first ? rows : columns) == fan_in)
        return {rows, columns, fan_in, first ? columns : rows};
    }
  }
  const int64_t columns = shape.empty() ? 1 : shape.back();
  return {count / columns, columns, count / columns, columns};
}

namespace {

// The directions of a unit are kept like its gradients: the elements that this rank owns. To make a
// matrix orthogonal, the ranks gather the unit. Each matrix has one rank that computes it. A sum
// over all ranks, where the others have zeros, brings the results back. So bits do not depend on
// the mesh, and no rank computes what another one does.
class Muon : public Method {
 public:
  Muon(const shard::Fabric& fabric, const Chosen& chosen, const MuonOptions& options)
      : Method(fabric, chosen),
        options_(options),
        sum_(fabric, options.momentum_type, [this](int p) { return this->chosen(p); }),
        decided_(fabric.queue.kind(), fabric.ledger, "workspace", 3 * size_of(device::DType::f32)),
        directions_(fabric.layout.units().size()),
        matrices_(fabric.layout.units().size()) {
    plan();
    args_.keep = state_coefficient(options.momentum, options.momentum_type);
    args_.momentum = float(options.momentum);
    args_.nesterov = options.nesterov;
    const float ones[3] = {1, 1, 1};
    device::upload(decided(), ones, fabric.queue);
  }

  // measure() writes directions, and needs two words for their squares.
  int64_t measures(int parameter) const override { return chosen(parameter) ? 2 : 0; }
  void begin_step(const StepInfo& info, const TensorTotals&) override {
    info_ = info;
    for (const device::Buffer& direction : directions_)
      if (direction.bytes() > 0)
        kernels::run(kernels::Fill{.y = direction.view(device::DType::f32)}, fabric_.queue);
    // Directions are clipped already, so of the decision only its last number is left.
    if (!info.clip.decided.none())
      kernels::run(kernels::Copy{.y = decided().slice(2, 1), .x = info.clip.decided.slice(2, 1)},
                   fabric_.queue);
  }
  // The update with momentum adds -(-1) D to zeros: it leaves the direction there.
  void measure(const Piece& piece, device::View, device::View gradient,
               device::View sums) override {
    args_.update = {.weights = direction(piece),
                    .gradient = gradient,
                    .sums = sums,
                    .clip = info_.clip,
                    .rate = -1};
    args_.trace = sum_.of(piece);
    sums_.add(args_);
  }
  void measured(const TensorTotals&) override {
    for (size_t u = 0; u < matrices_.size(); ++u)
      if (std::ranges::any_of(matrices_[u],
                              [&](const Matrix& m) { return info_.of(m.parameter).updated(); }))
        make_orthogonal(int(u));
  }
  void update(const Piece& piece, const kernels::Update& update) override {
    kernels::Update along = update;
    along.gradient = direction(piece);
    along.clip = {.decided = decided()};
    along.rate = float(double(update.rate) * scales_[size_t(piece.parameter)]);
    updates_.add({along});
  }
  void run() override {
    Method::run();
    sums_.run(fabric_.queue);
    updates_.run(fabric_.queue);
  }
  void list_state(std::vector<shard::TensorSlice>& out) override {
    for (int p = 0; p < int(fabric_.layout.parameters().size()); ++p)
      if (chosen(p)) sum_.list("/optimizer/muon/momentum", p, out);
  }

 private:
  struct Matrix {
    int parameter = 0;
    MatrixShape shape;
    int rank = 0;  // of the mesh: it makes the matrix orthogonal
  };

  void plan();
  double scale_of(const MatrixShape& shape) const;
  void make_orthogonal(int unit);
  bool scattered(int unit) const {
    return fabric_.layout.units()[size_t(unit)].strategy.optimizer_sharded &&
           fabric_.layout.fsdp() > 1;
  }
  device::View decided() const { return decided_.view(device::DType::f32).slice(0, 3); }
  device::View direction(const Piece& piece) const {
    return directions_[size_t(piece.unit)]
        .view(device::DType::f32)
        .slice(piece.offset, piece.count());
  }

  MuonOptions options_;
  ElementState sum_;
  device::Buffer decided_;                     // f32 [3]: 1, 1, and if the step is applied
  std::vector<device::Buffer> directions_;     // by unit: f32 [layout.owned_count(unit)]
  std::vector<std::vector<Matrix>> matrices_;  // by unit
  std::vector<double> scales_;                 // by parameter: times the rate
  device::Buffer whole_;                       // the longest unit that is scattered
  std::unique_ptr<NewtonSchulz> newton_schulz_;
  StepInfo info_;
  kernels::MomentumUpdate args_;
  kernels::OpList<kernels::MomentumUpdate> sums_;
  kernels::OpList<kernels::ApplyUpdate> updates_;
};

double Muon::scale_of(const MatrixShape& shape) const {
  const double in = double(shape.in), out = double(shape.out);
  switch (options_.scaling) {
    case MuonOptions::Scaling::original:
      return std::sqrt(std::max(1.0, out / in));
    case MuonOptions::Scaling::match_adamw:
      return 0.2 * std::sqrt(std::max(in, out));
    case MuonOptions::Scaling::none:
      break;
  }
  return 1;
}

// Gives each matrix to the rank that has the least to compute so far.
void Muon::plan() {
  const shard::Layout& layout = fabric_.layout;
  scales_.assign(layout.parameters().size(), 1);
  std::vector<double> load(size_t(fabric_.mesh.shape.ranks()), 0);
  int64_t elements = 0, side = 0, longest = 0;
  for (int u = 0; u < int(matrices_.size()); ++u) {
    for (const int p : layout.units()[size_t(u)].parameters) {
      if (!chosen(p)) continue;
      const shard::Parameter& parameter = layout.parameters()[size_t(p)];
      const MatrixShape shape = matrix_shape(parameter);
      const auto least = std::ranges::min_element(load);
      const int64_t shorter = std::min(shape.rows, shape.columns);
      *least += double(parameter.count()) * double(shorter);
      matrices_[size_t(u)].push_back({p, shape, int(least - load.begin())});
      scales_[size_t(p)] = scale_of(shape) * NewtonSchulz::factor(options_.steps);
      elements = std::max(elements, parameter.count());
      side = std::max(side, shorter);
    }
    if (matrices_[size_t(u)].empty()) continue;
    directions_[size_t(u)] = device::Buffer(fabric_.queue.kind(), fabric_.ledger, "workspace",
                                            layout.owned_count(u) * size_of(device::DType::f32));
    if (scattered(u)) longest = std::max(longest, layout.units()[size_t(u)].length);
  }
  whole_ = device::Buffer(fabric_.queue.kind(), fabric_.ledger, "workspace",
                          longest * size_of(device::DType::f32));
  newton_schulz_ =
      std::make_unique<NewtonSchulz>(fabric_.queue.kind(), fabric_.ledger, elements, side);
}

void Muon::make_orthogonal(int unit) {
  const device::View owned =
      directions_[size_t(unit)].view(device::DType::f32).slice(0, fabric_.layout.owned_count(unit));
  device::View whole = owned;
  if (scattered(unit)) {
    whole = whole_.view(device::DType::f32).slice(0, fabric_.layout.units()[size_t(unit)].length);
    fabric_.mesh.fsdp->all_gather(owned, whole, fabric_.queue).wait();
  }
  for (const Matrix& m : matrices_[size_t(unit)]) {
    const shard::Parameter& parameter = fabric_.layout.parameters()[size_t(m.parameter)];
    const device::View x = whole.slice(parameter.offset, parameter.count());
    if (m.rank == fabric_.mesh.rank())
      newton_schulz_->run(x, m.shape.rows, m.shape.columns, options_.steps, fabric_.queue);
    else
      kernels::run(kernels::Fill{.y = x}, fabric_.queue);
  }
  if (scattered(unit))
    fabric_.mesh.fsdp->reduce_scatter(whole, owned, fabric_.queue).wait();
  else if (fabric_.mesh.shape.fsdp > 1)
    fabric_.mesh.fsdp->all_reduce(owned, fabric_.queue).wait();
  if (fabric_.mesh.shape.replica > 1) fabric_.mesh.replica->all_reduce(owned, fabric_.queue).wait();
}

}  // namespace

std::unique_ptr<Method> MuonOptions::make(const shard::Fabric& fabric, const Chosen& chosen) const {
  return std::make_unique<Muon>(fabric, chosen, *this);
}

MethodRow muon_row() {
  return {"muon", "momentum with orthogonal directions, for matrices; others need a rule with kind",
          [] { return std::shared_ptr<MethodOptions>(std::make_shared<MuonOptions>()); }};
}

}  // namespace optim
