// SPDX-License-Identifier: Apache-2.0
// Tests a whole pass with bf16 operands. With and without bf16 instructions the same values are
// rounded, and only f32 sums may have another order. A sum that is off by its last bit changes a
// rounding now and then. The resulting change must be small compared with the change by rounding
// itself. A missing rounding point would change as much as rounding does.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/instructions.hpp"
#include "kernels/cpu/vector_table.hpp"
#include "kernels/gemm.hpp"
#include "kernels/testing.hpp"
#include "rig.hpp"

namespace {

using Gradients = std::map<std::string, std::vector<double>>;

// Returns the gradients of one pass from constant weights and a constant batch, and the losses of
// its evaluation.
Gradients pass(device::DType operands) {
  constexpr int64_t kExamples = 8;
  models::CappaOptions o = rig::small_options();
  rig::World world(o, kExamples, 1, {}, operands);
  world.shake(5, "shake", 0.2);
  rig::MadeBatch batch(o, kExamples);
  Gradients out;
  world.prepare(batch.host(kExamples), true, base::Stream(9, "draws"));
  world.forward_backward();
  for (const shard::Parameter& p : world.stores.layout.parameters()) {
    const device::View g = world.gradient(p.path);
    out[p.path].assign(g.f32(), g.f32() + g.count);
  }
  std::vector<double> nll(kExamples), weight(kExamples);
  world.prepare(batch.host(kExamples), false, base::Stream(9, "draws"));
  world.evaluate(nll.data(), weight.data());
  out["losses of the evaluation"] = nll;
  return out;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double square = 0;
  for (size_t i = 0; i < a.size(); ++i) square += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(square);
}

TEST(Bf16, EveryCpuRoundsTheSameValues) {
  using kernels::VectorTable;
  const Gradients exact = pass(device::DType::f32);
  std::map<std::string, Gradients> ways;
  for (bool emulated : {true, false}) {
    kernels::seams::force_bf16_emulation(emulated);
    if (!emulated && !kernels::bf16_is_native()) continue;
    for (const VectorTable* table : kernels::vector_tables()) {
      kernels::seams::force_vector_table(table);
      ways[fmt::format("{}, {}", emulated ? "emulated" : "native", table->name)] =
          pass(device::DType::bf16);
    }
  }
  kernels::seams::force_bf16_emulation(false);
  kernels::seams::force_vector_table(nullptr);
  const auto& [reference, first] = *ways.begin();
  for (const auto& [way, found] : ways)
    for (const auto& [name, values] : found) {
      const double rounding = distance(first.at(name), exact.at(name));
      EXPECT_GT(rounding, 0) << name << " is as exact as in f32: nothing to compare";
      EXPECT_LT(distance(values, first.at(name)), 0.1 * rounding)
          << name << ": " << way << " beside " << reference;
    }
}

}  // namespace
