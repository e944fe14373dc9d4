// SPDX-License-Identifier: Apache-2.0
// The results of a step do not depend on the cut of the batch into passes and ranks, on recomputed
// activations, or on the sharding strategy of each tensor. This holds with dropout, too.
#include <cmath>

#include "engine_rig.hpp"

namespace tests {
namespace {

// The digest of losses, norms and state after three steps from stirred weights.
uint64_t train_a_little(comm::Mesh& mesh, tests::Case c, const Change& change = {}) {
  c.mesh = mesh.shape;
  step::Engine engine(options_of(c, change), mesh, device::Kind::cpu);
  stir(engine);
  uint64_t digest = 0;
  for (int step = 1; step <= 3; ++step) {
    const step::StepReport& r = tests::run_step(engine, mesh, step);
    expect(r.finite && std::isfinite(r.loss()), "finite");
    std::vector<double> numbers = r.measures;
    numbers.insert(numbers.end(), {r.gradients.gradients.global, r.update.parameters.global});
    for (double v : numbers) digest = base::xxh3(&v, sizeof v, digest);
  }
  for (const auto& [name, bytes] : tests::whole_state(engine, *mesh.world))
    digest = base::xxh3(bytes.data(), bytes.size(), digest);
  return digest;
}

}  // namespace

void check_recompute() {
  int compared = 0;
  for (comm::MeshShape shape : few_shapes())
    for (const char* level : {"run", "mesh"}) {
      if (std::string(level) == "mesh" && !power_of_two()) continue;
      comm::Mesh mesh = comm::make_mesh(
          *session, shape,
          std::string(level) == "mesh" ? comm::SumOrder::tree : comm::SumOrder::library);
      for (double dropout : {0.0, 0.3}) {
        tests::Case c{.mesh = shape,
                      .micro_batch = 48 / session->world().size() / 2,
                      .level = level,
                      .dropout = dropout};
        const uint64_t none = train_a_little(mesh, c);
        for (const char* policy : {"gelu", "mlp", "block"}) {
          c.recompute = policy;
          expect(train_a_little(mesh, c) == none, c.text() + ": bits differ from recompute=none");
          ++compared;
        }
      }
    }
  say(fmt::format("recompute: {} runs equal to those that keep everything", compared));
}

// With level "mesh" whatever is drawn per example must come from its global position alone.
void check_dropout() {
  if (!power_of_two()) return;
  Alone alone;
  int compared = 0;
  auto smoothing = [](auto&, auto& m) { m.label_smoothing = 0.1; };
  tests::Case c{.mesh = {}, .dropout = 0.25};
  const uint64_t reference = train_a_little(alone.mesh, c, smoothing);
  expect(train_a_little(alone.mesh, {.mesh = {}}, smoothing) != reference,
         "dropout changes nothing");
  for (comm::MeshShape shape : shapes()) {
    comm::Mesh mesh = comm::make_mesh(*session, shape, comm::SumOrder::tree);
    for (int accumulation : {1, 2, 4})
      for (const char* parameters : {"sharded", "replicated"}) {
        c.micro_batch = 48 / session->world().size() / accumulation;
        c.parameters = parameters;
        c.recompute = accumulation == 2 ? "block" : "none";
        c.mesh = shape;
        expect(train_a_little(mesh, c, smoothing) == reference,
               c.text() + ": bits differ from one rank");
        ++compared;
      }
  }
  say(fmt::format("dropout: {} runs equal to one rank without accumulation", compared));
}

// Compares the gradient of a step, for every cut into passes and ranks, with the gradient of one
// pass on one rank.
void check_sums() {
  Alone alone;
  auto no_update = [](auto& o, auto&) { o.optimizer.learning_rate = o.optimizer.weight_decay = 0; };
  int compared = 0;
  for (const char* level : {"run", "mesh"}) {
    const bool bits = std::string(level) == "mesh";
    if (bits && !power_of_two()) continue;
    tests::Case c{.mesh = {}, .level = level};
    step::Engine one(options_of(c, no_update), alone.mesh, device::Kind::cpu);
    stir(one);
    const double loss = tests::run_step(one, alone.mesh, 1).loss();
    const auto expected = whole_gradients(one, alone.mesh);
    for (comm::MeshShape shape : shapes())
      for (auto [parameters, optimizer] : {std::pair{"replicated", "replicated"},
                                           {"replicated", "sharded"},
                                           {"sharded", "sharded"}})
        for (int passes : {1, 2, 3, 4}) {
          if (bits && passes == 3) continue;
          c.mesh = shape;
          c.micro_batch = 48 / shape.ranks() / passes;
          c.parameters = parameters;
          c.optimizer = optimizer;
          comm::Mesh mesh = comm::make_mesh(*session, shape,
                                            bits ? comm::SumOrder::tree : comm::SumOrder::library);
          step::Engine engine(options_of(c, no_update), mesh, device::Kind::cpu);
          stir(engine);
          double found = tests::run_step(engine, mesh, 1).loss();
          expect(bits ? found == loss : std::abs(found - loss) <= 1e-6 * loss,
                 c.text() + fmt::format(": loss {}, not {}", found, loss));
          for (const auto& [path, g] : whole_gradients(engine, mesh)) {
            const Floats& e = expected.at(path);
            // gradients of key biases are zero up to rounding
            double largest = 1e-3, worst = 0;
            for (size_t i = 0; i < e.size(); ++i) {
              largest = std::max(largest, double(std::abs(e[i])));
              worst = std::max(worst, double(std::abs(g[i] - e[i])));
            }
            expect(bits ? g == e : worst <= 1e-5 * largest,
                   c.text() +
                       fmt::format(": gradient of {} is off by {} of {}", path, worst, largest));
          }
          ++compared;
        }
  }
  say(fmt::format("sums: gradients of {} cuts of the batch equal those of one pass on one rank",
                  compared));
}

// The tensors of one layer have different strategies: a norm's scale and bias, or a product's
// kernel and bias. Sharded gradients are exchanged in every pass, the others accumulate.
void check_mixed_strategies() {
  Alone alone;
  tests::Case c{.mesh = {},
                .micro_batch = 12,
                .parameters = "replicated",
                .optimizer = "replicated",
                .level = "run"};
  step::Engine one(options_of(c, {}), alone.mesh, device::Kind::cpu);
  stir(one);
  const std::vector<double> wanted =
      tests::run_step(one, alone.mesh, 1).gradients.gradients.per_parameter;
  int cases = 0;
  for (comm::MeshShape shape : few_shapes())
    for (const char* sharded : {".*/scale", ".*/bias", ".*/kernel"}) {
      comm::Mesh mesh = comm::make_mesh(*session, shape, comm::SumOrder::library);
      c.mesh = shape;
      c.micro_batch = 48 / session->world().size() / 4;
      auto rules = [&](auto& o, auto&) {
        o.sharding.rules = {{sharded, shard::Placement::sharded, shard::Placement::sharded}};
      };
      step::Engine engine(options_of(c, rules), mesh, device::Kind::cpu);
      stir(engine);
      const std::vector<double> found =
          tests::run_step(engine, mesh, 1).gradients.gradients.per_parameter;
      for (size_t p = 0; p < found.size(); ++p)
        expect(std::abs(found[p] - wanted[p]) <= 2e-5 * wanted[p] + 1e-7,
               fmt::format("{} sharded: norm {} of {}, not {}", sharded, found[p],
                           engine.layout().parameters()[p].path, wanted[p]));
      ++cases;
    }
  say(fmt::format("strategies that differ within a layer: {} cases", cases));
}

}  // namespace tests
