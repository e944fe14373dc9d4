// SPDX-License-Identifier: Apache-2.0
// The small model in the real engine, for the parts of engine_test: options, weights that are not
// zero, whole gradients. The parts' checks are declared at the end.
#pragma once

#include <algorithm>
#include <functional>

#include "rank_checks.hpp"
#include "small_model.hpp"

namespace tests {

using Floats = std::vector<float>;

// Meshes for checks that do not depend on the mesh: with four ranks only the one with both axes.
// check_sums() covers every mesh.
inline std::vector<comm::MeshShape> few_shapes() {
  return session->world().size() == 4 ? std::vector<comm::MeshShape>{{2, 2}} : shapes();
}

using Change = std::function<void(step::EngineOptions&, models::CappaOptions&)>;
inline step::EngineOptions options_of(const tests::Case& c, const Change& change) {
  step::EngineOptions o = tests::engine_options(c, 10);
  models::CappaOptions m = tests::small_cappa(c.dropout);
  if (change) change(o, m);
  o.model = tests::made_cappa(c, m);
  return o;
}

// Gives every weight a value. The initial head is zero, which makes almost every gradient zero.
inline void stir(step::Engine& engine) {
  engine.initialise();
  for (const shard::TensorSlice& s : engine.state()) {
    if (!s.name.starts_with("/params/")) continue;
    double amount = s.name.find("LogitsDense/kernel") != std::string::npos ? 0.3
                    : s.shape.size() == 1                                  ? 0.1
                                                                           : 0.02;
    for (const auto& part : s.parts)
      for (int64_t i = part.begin; i < part.end; ++i)
        static_cast<float*>(part.data)[i - part.begin] +=
            float(amount * base::Stream(99, s.name).normal(uint64_t(i)));
  }
  engine.publish();
}

// Every whole gradient, by path, at every rank: each adds its part to zeros, which is exact.
inline std::map<std::string, Floats> whole_gradients(step::Engine& engine, const comm::Mesh& mesh) {
  const shard::Layout& layout = engine.layout();
  std::map<std::string, Floats> out;
  for (const shard::Parameter& p : layout.parameters())
    out[p.path].assign(p.trained() ? size_t(p.size) : 0, 0);
  for (int u = 0; u < int(layout.units().size()); ++u) {
    const shard::Unit& unit = layout.units()[size_t(u)];
    if (!unit.trained() || mesh.replica_index != 0 ||
        (!unit.strategy.optimizer_sharded && mesh.fsdp_index != 0))
      continue;
    device::View g = engine.owned_gradient(u);
    for (const shard::Segment& s :
         layout.segments(u, layout.owned_begin(u, mesh.fsdp_index), g.count))
      std::copy_n(g.f32() + s.offset, s.count(),
                  out[layout.parameters()[size_t(s.parameter)].path].begin() + s.begin);
  }
  for (auto& [path, g] : out)
    mesh.world->all_reduce(device::view(g.data(), int64_t(g.size()))).wait();
  return out;
}

// engine_gradients.cpp
void check_gradients();
// engine_cuts.cpp
void check_sums();
void check_recompute();
void check_dropout();
void check_mixed_strategies();
// engine_left_out.cpp
void check_frozen();
void check_without_labels();
// engine_overlap.cpp
void check_overlap();
// engine_model.cpp
void check_draws();
void check_inventory();
void check_cap();
void check_causality();

}  // namespace tests
