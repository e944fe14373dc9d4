// SPDX-License-Identifier: Apache-2.0
#include "optim/second_weights.hpp"

#include <algorithm>
#include <utility>

#include "optim/element_state.hpp"

namespace optim {

SecondWeights::SecondWeights(shard::Fabric fabric, Options options, const shard::WeightStore& first)
    : fabric_(fabric),
      options_(std::move(options)),
      first_(first),
      second_(fabric, options_.prefetch, &first,
              [this](const shard::Unit& unit) { return !options_.owns(unit); }) {
  const std::vector<shard::Unit>& all = fabric_.layout.units();
  const bool states = std::any_of(all.begin(), all.end(), [this](const shard::Unit& unit) {
    return unit.kind == shard::ParameterKind::state && options_.owns(unit);
  });
  if (states) states_ = std::make_unique<shard::StateStore>(fabric_, options_.owns);
  if (!options_.unit_rows) return;
  pieces_ = owned_pieces(fabric_);
  row_norms_ = std::make_unique<RowNorms>(fabric_);
}

void SecondWeights::start() {
  for (int u = 0; u < units(); ++u)
    if (owns(u)) device::copy(second_.owned(u), first_.owned(u), fabric_.queue);
  gathered_ = false;
}

void SecondWeights::begin_step() {
  if (states_) states_->begin_step(second_);
}

void SecondWeights::update(int64_t step, device::View decided) {
  if (states_) {
    states_->commit(second_, decided);
    gathered_ = false;
  }
  const std::optional<float> keep = options_.keep(step);
  if (!keep) return;
  for (int u = 0; u < units(); ++u)
    if (fabric_.layout.units()[size_t(u)].trained() && owns(u))
      updates_.add({.average = second_.owned(u),
                    .values = first_.owned(u),
                    .decided = decided,
                    .keep = *keep});
  updates_.run(fabric_.queue);
  if (row_norms_)
    row_norms_->normalise(
        pieces_,
        [this](const Piece& piece) {
          return second_.owned(piece.unit).slice(piece.offset, piece.count());
        },
        decided);
  gathered_ = false;
}

shard::WeightStore& SecondWeights::weights() {
  if (!gathered_) second_.publish();
  gathered_ = true;
  return second_;
}

void SecondWeights::list_state(std::vector<shard::TensorSlice>& out) const {
  const shard::Layout& layout = fabric_.layout;
  std::vector<size_t> at(layout.parameters().size());
  for (size_t p = 0; p < layout.parameters().size(); ++p) {
    const shard::Parameter& parameter = layout.parameters()[p];
    if (!owns(parameter.unit)) continue;
    at[p] = out.size();
    out.push_back(
        {options_.root + parameter.path,
         device::DType::f32,
         parameter.shape,
         {},
         writes_state(fabric_.mesh,
                      layout.units()[size_t(parameter.unit)].strategy.optimizer_sharded)});
  }
  for (int u = 0; u < units(); ++u) {
    if (!owns(u)) continue;
    const device::View owned = second_.owned(u);
    for (const shard::Segment& s :
         layout.segments(u, layout.owned_begin(u, fabric_.mesh.fsdp_index), owned.count))
      out[at[size_t(s.parameter)]].parts.push_back({s.begin, s.end, owned.f32() + s.offset});
  }
}

}  // namespace optim
