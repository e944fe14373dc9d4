// SPDX-License-Identifier: Apache-2.0
// Gradients of every parameter tensor, against central differences of the loss.
#include <cmath>

#include "engine_rig.hpp"

namespace tests {
namespace {

// Sets elements of a tensor wherever this rank holds them.
template <class Value>
void set(const std::vector<shard::TensorSlice>& state, const std::string& name, Value value) {
  for (const shard::TensorSlice& s : state)
    if (s.name == name)
      for (const auto& part : s.parts)
        for (int64_t i = part.begin; i < part.end; ++i)
          static_cast<float*>(part.data)[i - part.begin] = value(i);
}

// Predicts fourth-order central differences of the loss from the gradient and the stored weights.
// The directions in each tensor are the gradient itself, a random one, the steepest element and a
// random element.
void compare_with_differences(comm::Mesh& mesh, const std::string& name, tests::Case c,
                              const Change& change, int probes) {
  c.global_batch = 12;
  c.micro_batch = 12;
  c.level = "run";
  c.kind = "sgd";
  c.mesh = mesh.shape;
  step::Engine engine(options_of(c,
                                 [&](step::EngineOptions& o, models::CappaOptions& m) {
                                   if (change) change(o, m);
                                   o.optimizer.learning_rate = 0;
                                   o.optimizer.weight_decay = 0;
                                   o.optimizer.clip_norm = 0;
                                 }),
                      mesh, device::Kind::cpu);
  stir(engine);
  // later steps reuse the inputs of the first step
  auto loss = [&] { return engine.step(1, {}).loss(); };
  tests::run_step(engine, mesh, 1);
  std::vector<shard::TensorSlice> state = engine.state();
  const auto gradients = whole_gradients(engine, mesh);
  const auto weights = tests::whole_state(engine, *mesh.world);
  double largest = 0, worst = 0;
  int tensors = 0;
  for (const auto& [path, g] : gradients)
    for (float v : g) largest = std::max(largest, double(std::abs(v)));
  expect(largest > 0.01, name + ": gradients are too small to be checked");
  for (const auto& [path, gradient] : gradients) {
    const auto& g = gradient;  // Clang before 16 lets no lambda capture what [path, gradient] names
    ++tensors;
    const std::string tensor = "/params/" + path;
    const float* w = reinterpret_cast<const float*>(weights.at(tensor).data());
    const int64_t n = int64_t(g.size());
    base::Stream s(8, path);
    double norm = 0;
    for (float v : g) norm += double(v) * double(v);
    norm = std::sqrt(norm);
    const int64_t steepest =
        std::max_element(g.begin(), g.end(),
                         [](float a, float b) { return std::abs(a) < std::abs(b); }) -
        g.begin();
    const int64_t any = int64_t(s.bits64(0) % uint64_t(n));
    for (int probe = 0; probe < probes; ++probe) {
      auto along = [&](int64_t i) -> double {
        if (probe == 0) return norm > 0 ? double(g[size_t(i)]) / norm : 0;
        if (probe == 1) return i == steepest;
        if (probe == 2) return (s.bits(uint64_t(i + 100)) & 1 ? 1 : -1) / std::sqrt(double(n));
        return i == any;
      };
      // A step that changes the loss by little, for the curvature, but by much more than its
      // rounding error of about 1e-7.
      double slope = 0, found = 0, predicted = 0;
      for (int64_t i = 0; i < n; ++i) slope += double(g[size_t(i)]) * along(i);
      const double h = std::min(0.05, 0.02 / std::abs(slope));
      for (auto [steps, factor] : {std::pair{1, 8.0}, {-1, -8.0}, {2, -1.0}, {-2, 1.0}}) {
        auto moved = [&, k = steps](int64_t i) { return w[i] + float(k * h * along(i)); };
        set(state, tensor, moved);
        found += factor * loss() / (12 * h);
        for (int64_t i = 0; i < n; ++i)
          predicted += factor * double(g[size_t(i)]) * (double(moved(i)) - double(w[i])) / (12 * h);
      }
      set(state, tensor, [&](int64_t i) { return w[i]; });
      double error = std::abs(found - predicted), allowed = 3e-4 * std::abs(predicted) + 1e-5;
      worst = std::max(worst, error / allowed);
      // Key biases of the encoder have no gradient: they add one constant to a row of scores.
      if (probe == 0 && !path.ends_with("key/bias"))
        expect(predicted > 1e-3, path + ": too small a gradient to be checked");
      expect(error <= allowed,
             fmt::format("{}: {} along direction {}: {:.6g} by differences, {:.6g} by backward",
                         name, path, probe, found, predicted));
    }
  }
  expect(tensors == int(engine.layout().parameters().size()),
         name + ": every tensor has a gradient");
  say(
      fmt::format("gradients: {}, mesh {}x{}, {} directions in each of {} tensors, worst error "
                  "{:.2f} of the tolerance",
                  name, mesh.shape.replica, mesh.shape.fsdp, probes, tensors, worst));
}

}  // namespace

void check_gradients() {
  Alone alone;
  auto cap = [](auto&, auto& m) {
    m.masked_pred_prob = 0;
    m.decoder.bias = false;
  };
  auto fixed = [](auto&, auto& m) {
    m.learned_positions = false;
    m.masking_ratio = 1;
    m.decoder.width = m.decoder.heads = m.decoder.mlp = 0;
  };
  auto smooth = [](auto&, auto& m) { m.label_smoothing = 0.1; };
  const tests::Case shared{.mesh = {}, .recompute = "mlp", .dropout = 0.2};
  if (session->world().size() == 1) {
    compare_with_differences(alone.mesh, "CapPa", {}, {}, 4);
    compare_with_differences(alone.mesh, "CapPa, dropout", shared, smooth, 4);
    compare_with_differences(alone.mesh, "Cap", {}, cap, 2);
    compare_with_differences(alone.mesh, "CapPa, fixed positions", {.mesh = {}, .dropout = 0.2},
                             fixed, 2);
  }
  if (session->world().size() > 1) {
    comm::Mesh mesh = comm::make_mesh(*session, few_shapes().front(), comm::SumOrder::library);
    compare_with_differences(mesh, "CapPa, dropout", shared, smooth, 1);
  }
}

}  // namespace tests
