// SPDX-License-Identifier: Apache-2.0
#include "shard/state_store.hpp"

#include <algorithm>
#include <utility>

#include "kernels/elementwise.hpp"
#include "kernels/ema_update.hpp"
#include "kernels/keep_rows.hpp"

namespace shard {

using device::DType;
using device::View;

StateStore::StateStore(Fabric fabric, const std::function<bool(const Unit&)>& keeps)
    : fabric_(fabric), sums_(fabric.queue, fabric.ledger) {
  for (const Unit& unit : fabric_.layout.units()) {
    kept_.push_back(unit.kind == ParameterKind::state && (!keeps || keeps(unit)));
    next_.push_back(kept_.back() ? device::Buffer(fabric_.queue.kind(), fabric_.ledger, "state",
                                                  unit.length * 4)
                                 : device::Buffer());
  }
}

View StateStore::whole(size_t unit) const {
  return next_[unit].view(DType::f32).slice(0, fabric_.layout.units()[unit].length);
}

void StateStore::begin_step(const WeightStore& weights) {
  for (size_t u = 0; u < next_.size(); ++u) {
    const Unit& unit = fabric_.layout.units()[u];
    if (!kept_[u] || (unit.by_rows && current_)) continue;
    if (unit.strategy.optimizer_sharded)
      fabric_.mesh.fsdp->all_gather(weights.owned(int(u)), whole(u), fabric_.queue).wait();
    else
      device::copy(whole(u), weights.owned(int(u)), fabric_.queue);
  }
  current_ = true;
  calls_ = 0;
}

View StateStore::next(int parameter) const {
  const Parameter& p = fabric_.layout.parameters()[size_t(parameter)];
  CHECK(kept_[size_t(p.unit)], "{} is not a state of this store", p.path);
  return whole(size_t(p.unit)).slice(p.offset, p.size);
}

StateStore::Touched StateStore::make_touched(int parameter, int64_t rows) const {
  const Parameter& p = fabric_.layout.parameters()[size_t(parameter)];
  auto buffer = [&](int64_t elements) {
    return device::Buffer(fabric_.queue.kind(), fabric_.ledger, "state", elements * 4);
  };
  return {parameter, rows, buffer(rows), buffer(rows * (p.size / p.shape[0]))};
}

void StateStore::touch(int parameter, View index) {
  const Parameter& p = fabric_.layout.parameters()[size_t(parameter)];
  CHECK(p.by_rows, "{} is no state by rows", p.path);
  if (calls_ == touched_.size()) touched_.push_back(make_touched(parameter, index.count));
  const Touched& t = touched_[calls_++];
  CHECK(t.parameter == parameter && t.rows == index.count,
        "{}: a step touches {} rows where an earlier one touched {}", p.path, index.count, t.rows);
  const View kept = t.index.view(DType::i32).slice(0, t.rows);
  device::copy(kept, index, fabric_.queue);
  kernels::run(
      kernels::GatherRows{.y = t.before.view(DType::f32).slice(0, t.rows * (p.size / p.shape[0])),
                          .x = next(parameter),
                          .index = kept,
                          .rows = t.rows,
                          .width = p.size / p.shape[0],
                          .source_rows = p.shape[0]},
      fabric_.queue);
}

void StateStore::reserve(const StateStore& planned) {
  sums_.reserve(planned.sums_);
  for (const Touched& t : planned.touched_) touched_.push_back(make_touched(t.parameter, t.rows));
}

void StateStore::commit(const WeightStore& weights, View decided) {
  const Layout& layout = fabric_.layout;
  for (int u = 0; u < int(next_.size()); ++u) {
    if (!kept_[size_t(u)] || layout.units()[size_t(u)].by_rows) continue;
    const int64_t begin = layout.owned_begin(u, fabric_.mesh.fsdp_index);
    kernels::run(kernels::EmaUpdate{.average = weights.owned(u),
                                    .values = whole(size_t(u)).slice(begin, layout.owned_count(u)),
                                    .decided = decided},
                 fabric_.queue);
  }
  // A row that two calls have kept gets the value back that it had before the first one.
  for (; calls_ > 0; --calls_) commit_rows(weights, touched_[calls_ - 1], decided);
}

void StateStore::commit_rows(const WeightStore& weights, const Touched& t, View decided) const {
  const Parameter& p = fabric_.layout.parameters()[size_t(t.parameter)];
  const View held = weights.held(p.unit);
  const int64_t width = p.size / p.shape[0], begin = weights.held_begin(p.unit),
                from = std::max(begin, p.offset),
                to = std::min(begin + held.count, p.offset + p.size);
  kernels::run(kernels::KeepRows{.kept = from < to ? held.slice(from - begin, to - from) : View{},
                                 .state = next(t.parameter),
                                 .before = t.before.view(DType::f32).slice(0, t.rows * width),
                                 .index = t.index.view(DType::i32).slice(0, t.rows),
                                 .decided = decided,
                                 .rows = t.rows,
                                 .width = width,
                                 .state_rows = p.shape[0],
                                 .first = from < to ? from - p.offset : 0},
               fabric_.queue);
}

}  // namespace shard
