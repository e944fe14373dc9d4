// SPDX-License-Identifier: Apache-2.0
// Parameters and examples that a step leaves out: frozen tensors, and examples without labels.
#include <cmath>
#include <regex>

#include "engine_rig.hpp"
#include "models/captions/cappa.hpp"

namespace tests {

using models::Cappa;

namespace {

// Runs a step without the labels (or, by masks, the weight) of the examples at [from, to).
const step::StepReport& step_without_labels(step::Engine& engine, comm::Mesh& mesh, int64_t from,
                                            int64_t to, bool by_mask) {
  struct MaskedBatch : tests::MadeBatch {
    using MadeBatch::MadeBatch;
    Floats masks;
  };
  return engine.step(1, [&](int64_t m) {
    const step::Geometry& g = engine.geometry();
    int64_t first = g.first_example(mesh, m);
    auto made = std::make_shared<MaskedBatch>(tests::small_cappa(), first, g.micro_batch);
    MaskedBatch& batch = *made;
    Floats& masks = batch.masks;
    masks.assign(batch.labels.size(), 1.0f);
    for (int64_t i = 0; i < g.micro_batch; ++i)
      if (first + i >= from && first + i < to)
        for (int64_t l = i * 9; l < (i + 1) * 9; ++l)
          (by_mask ? masks[size_t(l)] : reinterpret_cast<float&>(batch.labels[size_t(l)])) = 0;
    if (by_mask)
      batch.host.features["label_masks"] = device::view(masks.data(), int64_t(masks.size()));
    return tests::owned(made);
  });
}

}  // namespace

void check_frozen() {
  const std::string pattern =
      "encoder/Transformer/encoderblock_0/.*|decoder/EncDecBlock1/CrossAttn/"
      ".*|pos_embedding_decoder|.*/embedding";
  const std::regex re(pattern);
  int cases = 0;
  for (comm::MeshShape shape : few_shapes()) {
    comm::Mesh mesh = comm::make_mesh(*session, shape, comm::SumOrder::library);
    // In bf16, weights with a sharded optimizer are exchanged rounded. Frozen ones must arrive,
    // too.
    for (auto [kind, parameters, optimizer, bf16] :
         {std::tuple{"adafactor", "sharded", "sharded", false},
          {"adamw", "replicated", "sharded", false},
          {"adafactor", "replicated", "replicated", false},
          {"adamw", "replicated", "sharded", true},
          {"adafactor", "sharded", "sharded", true}}) {
      tests::Case c{.mesh = shape,
                    .micro_batch = 48 / session->world().size() / 2,
                    .parameters = parameters,
                    .optimizer = optimizer,
                    .level = "run"};
      c.kind = kind;
      c.bf16 = bf16;
      step::Engine all(options_of(c, {}), mesh, device::Kind::cpu);
      c.frozen = pattern;
      step::Engine some(options_of(c, {}), mesh, device::Kind::cpu);
      stir(all);
      stir(some);
      auto before = tests::whole_state(some, *mesh.world);
      const optim::Norms norms = tests::run_step(all, mesh, 1).gradients.gradients;
      const step::StepReport& r = tests::run_step(some, mesh, 1);
      int many = 0;
      double squares = 0, global = r.gradients.gradients.global;
      for (size_t p = 0; p < some.layout().parameters().size(); ++p) {
        const shard::Parameter& parameter = some.layout().parameters()[p];
        const double norm = r.gradients.gradients.per_parameter[p], wanted = norms.per_parameter[p];
        const bool is_frozen = std::regex_match(parameter.path, re);
        many += is_frozen;
        squares += norm * norm;
        expect(parameter.trained() != is_frozen, parameter.path + ": frozen or not");
        expect(is_frozen ? norm == 0 : std::abs(norm - wanted) <= 1e-5 * wanted + 1e-9,
               fmt::format("{}: norm {} where nothing is frozen {}", parameter.path, norm, wanted));
        expect(!is_frozen || r.update.updates.per_parameter[p] == 0,
               parameter.path + ": norm of the update");
        expect(r.update.parameters.per_parameter[p] > 0,
               parameter.path + ": frozen parameters have a norm, too");
      }
      expect(std::abs(global - std::sqrt(squares)) <= 1e-9 * global,
             "the global norm leaves frozen parameters out");
      expect(many == 22 && global < 0.99 * norms.global,
             fmt::format("{} tensors are frozen, the norm is smaller for it", many));
      tests::run_step(some, mesh, 2);
      tests::run_step(some, mesh, 3);
      auto after = tests::whole_state(some, *mesh.world);
      for (const auto& [name, bytes] : after) {
        size_t slash = name.starts_with("/params/")
                           ? 7
                           : name.find('/', name.find('/', std::string("/optimizer/").size()) + 1);
        bool is_frozen = std::regex_match(name.substr(slash + 1), re);
        bool good =
            name.starts_with("/params/") ? (bytes == before.at(name)) == is_frozen : !is_frozen;
        expect(good,
               name + (is_frozen ? " is frozen, but changed or has a state" : " did not change"));
      }
      expect(some.ledger().peak_of("gradients") < all.ledger().peak_of("gradients"),
             "no memory for gradients that no parameter needs");
      expect(some.ledger().peak_of("optimizer") < all.ledger().peak_of("optimizer"),
             "no memory for state that no parameter needs");
      ++cases;
    }
  }
  say(fmt::format("frozen: {} cases", cases));
}

void check_without_labels() {
  Alone alone;
  auto no_update = [](auto& o, auto&) { o.optimizer.learning_rate = o.optimizer.weight_decay = 0; };
  auto norms_of = [&](const step::StepReport& r) { return r.gradients.gradients.per_parameter; };
  // Runs the first half of the batch alone. Its sums are the expected result.
  tests::Case c{.mesh = {}, .level = "run", .global_batch = 24};
  step::Engine half(options_of(c, no_update), alone.mesh, device::Kind::cpu);
  stir(half);
  step::StepReport expected = step_without_labels(half, alone.mesh, 0, 0, false);
  int cases = 0;
  for (comm::MeshShape shape : few_shapes())
    for (bool by_mask : {false, true})
      for (const char* level : {"run", "mesh"}) {
        if (std::string(level) == "mesh" && !power_of_two()) continue;
        comm::Mesh mesh = comm::make_mesh(
            *session, shape,
            std::string(level) == "mesh" ? comm::SumOrder::tree : comm::SumOrder::library);
        c.mesh = shape;
        c.level = level;
        c.global_batch = 48;
        c.micro_batch = 48 / session->world().size() / 2;
        step::Engine engine(options_of(c, no_update), mesh, device::Kind::cpu);
        stir(engine);
        const step::StepReport& r = step_without_labels(engine, mesh, 24, 48, by_mask);
        expect(r.finite, "finite");
        expect(std::abs(2 * r.loss() - expected.loss()) <= 1e-5 * expected.loss(),
               fmt::format("loss {} of {}", r.loss(), expected.loss()));
        const double per_token = expected.measures[Cappa::Measures::loss_per_token];
        expect(
            std::abs(r.measures[Cappa::Measures::loss_per_token] - per_token) <= 1e-5 * per_token,
            "examples without labels have no tokens");
        expect(r.sums[Cappa::Sums::examples_ar] + r.sums[Cappa::Sums::examples_parallel] == 48,
               "they are examples, though");
        std::vector<double> found = norms_of(r), wanted = norms_of(expected);
        for (size_t p = 0; p < found.size(); ++p)
          expect(std::abs(2 * found[p] - wanted[p]) <= 2e-5 * wanted[p] + 1e-7,
                 fmt::format("{}: norm {} of {}", engine.layout().parameters()[p].path, found[p],
                             wanted[p]));
        ++cases;
      }
  // No example has a label: no loss, no gradient, and the weights stay finite.
  for (const char* kind : {"adafactor", "adamw", "momentum", "sgd"}) {
    c.kind = kind;
    c.level = "run";
    comm::Mesh mesh =
        comm::make_mesh(*session, {1, session->world().size()}, comm::SumOrder::library);
    step::Engine engine(options_of(c, {}), mesh, device::Kind::cpu);
    stir(engine);
    const step::StepReport& r = step_without_labels(engine, mesh, 0, 48, false);
    expect(r.finite && r.loss() == 0 && r.gradients.gradients.global == 0 &&
               std::isnan(r.measures[Cappa::Measures::loss_per_token]),
           std::string(kind) + ": a batch without labels");
    tests::run_step(engine, mesh, 2);
    expect(std::isfinite(tests::run_step(engine, mesh, 3).update.parameters.global),
           std::string(kind) + ": weights are finite afterwards");
    ++cases;
  }
  say(fmt::format("examples without labels: {} cases", cases));
}

}  // namespace tests
