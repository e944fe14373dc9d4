// SPDX-License-Identifier: Apache-2.0
// For the test of the engine's memory: decks of every kind of sharding, and batches that exist
// before a step begins.
#pragma once

#include <functional>

#include "rank_checks.hpp"
#include "small_model.hpp"

namespace tests {

// Holds made-up batches and what passes make from them, so that a step allocates nothing for its
// inputs.
class MadeFeed {
 public:
  // Makes the batches of steps 1..steps. fullness(step) is 0 for captions of one token, 1 for
  // captions of any length, 2 for captions without padding.
  MadeFeed(step::Engine& engine, comm::Mesh& mesh, int64_t steps,
           const std::function<int(int64_t step)>& fullness) {
    const step::Geometry& g = engine.geometry();
    for (int64_t step = 1; step <= steps; ++step)
      for (int64_t m = 0; m < g.accumulation; ++m) {
        auto batch = std::make_shared<tests::MadeBatch>(
            tests::small_cappa(), (step - 1) * g.global_batch + g.first_example(mesh, m),
            g.micro_batch);
        for (size_t i = 0; i < batch->labels.size(); ++i) {
          if (fullness(step) == 2 && batch->labels[i] == 0) batch->labels[i] = 3;
          if (fullness(step) == 0) batch->labels[i] = i % 9 == 0;
        }
        auto& bytes = made_.emplace_back();
        models::Inputs into;
        for (const models::InputSpec& spec : engine.train_pass().inputs()) {
          if (!spec.field.empty()) continue;
          std::string& memory = bytes[spec.name];
          memory.resize(size_t(spec.per_example * g.micro_batch * device::size_of(spec.type)));
          into[spec.name] =
              device::View{memory.data(), spec.type, spec.per_example * g.micro_batch};
        }
        engine.train_pass().prepare(batch->host, engine.draws(step), into);
        batches_.push_back(tests::owned(std::move(batch)));
      }
    source_ = [this](int64_t) { return std::move(batches_[next_]); };
    prepare_ = [this](const models::HostBatch&, const models::Inputs& into) {
      for (const auto& [name, bytes] : made_[next_])
        std::memcpy(into.find(name)->second.host.data, bytes.data(), bytes.size());
      ++next_;
    };
  }
  // Each step runs once.
  const step::StepReport& step(step::Engine& engine, int64_t step) {
    return engine.step(step, source_, prepare_);
  }

 private:
  std::vector<models::HostBatch> batches_;                // by step and pass
  std::vector<std::map<std::string, std::string>> made_;  // inputs of each
  size_t next_ = 0;
  step::Engine::Source source_;
  step::Engine::Prepare prepare_;
};

struct Deck {
  std::string name;
  tests::Case c;
  std::function<void(step::EngineOptions&)> change = [](step::EngineOptions&) {};
  models::CappaOptions model = tests::small_cappa();
  int64_t passes = 1;

  step::EngineOptions options(comm::MeshShape shape) const {
    tests::Case on = c;
    on.mesh = shape;
    on.micro_batch = 48 / shape.ranks() / passes;
    step::EngineOptions o = tests::engine_options(on, 10);
    o.model = tests::made_cappa(on, model);
    change(o);
    return o;
  }
  comm::SumOrder order() const {
    return c.level == "mesh" ? comm::SumOrder::tree : comm::SumOrder::library;
  }
};

inline std::vector<Deck> decks() {
  std::vector<Deck> out;
  auto add = [&](const std::string& name, const char* parameters, const char* optimizer,
                 const char* level, int64_t passes, const char* recompute, const char* kind,
                 std::function<void(step::EngineOptions&)> change = {}) {
    Deck d{.name = name, .c = {.mesh = {}}};
    d.c.parameters = parameters;
    d.c.optimizer = optimizer;
    d.c.level = level;
    d.c.recompute = recompute;
    d.c.kind = kind;
    d.passes = passes;
    if (change) d.change = std::move(change);
    if (d.c.level == "run" || power_of_two()) out.push_back(d);
  };
  add("data parallel", "replicated", "replicated", "run", 1, "none", "adafactor");
  add("ZeRO-1, 3 passes", "replicated", "sharded", "run", 3, "none", "adamw");
  add("FSDP", "sharded", "sharded", "run", 1, "mlp", "adafactor");
  add("FSDP, 4 passes, nothing gathered ahead", "sharded", "sharded", "run", 4, "block", "momentum",
      [](step::EngineOptions& o) { o.sharding.prefetch = 0; });
  add("level mesh, FSDP", "sharded", "sharded", "mesh", 1, "none", "adafactor");
  add("level mesh, FSDP, 4 passes", "sharded", "sharded", "mesh", 4, "block", "adamw");
  add("level mesh, data parallel, 2 passes", "replicated", "replicated", "mesh", 2, "mlp",
      "adafactor");
  add("level mesh, ZeRO-1", "replicated", "sharded", "mesh", 1, "none", "sgd");
  add("mixed strategies, frozen encoder blocks, dropout", "sharded", "sharded", "run", 2, "block",
      "adafactor", [](step::EngineOptions& o) {
        o.sharding.rules = {
            {".*/bias", shard::Placement::replicated, shard::Placement::replicated},
            {"decoder/EmbedTargets/.*", shard::Placement::replicated, shard::Placement::inherited}};
      });
  out.back().model = tests::small_cappa(0.2);
  out.back().c.frozen = "encoder/Transformer/encoderblock_.*";
  add("Cap, update clipping, logits in chunks of a MiB", "sharded", "sharded", "run", 1, "none",
      "adafactor", [](step::EngineOptions& o) {
        auto method = std::make_shared<optim::AdafactorOptions>();
        method->clipping_threshold = 1;
        o.optimizer.method = method;
      });
  out.back().model.masked_pred_prob = 0;
  out.back().model.logits_mb = 1;
  auto narrow = [](step::EngineOptions& o) { o.operands = device::DType::bf16; };
  add("FSDP in bf16, 2 passes", "sharded", "sharded", "run", 2, "mlp", "adafactor", narrow);
  add("ZeRO-1 in bf16", "replicated", "sharded", "run", 1, "none", "adamw", narrow);
  add("level mesh, data parallel in bf16", "replicated", "replicated", "mesh", 1, "none",
      "adafactor", narrow);
  add("mixed strategies in bf16", "sharded", "sharded", "run", 1, "none", "adafactor",
      [](step::EngineOptions& o) {
        o.operands = device::DType::bf16;
        o.sharding.rules = {
            {".*/bias", shard::Placement::replicated, shard::Placement::replicated},
            {"decoder/EmbedTargets/.*", shard::Placement::replicated, shard::Placement::inherited}};
      });
  return out;
}

}  // namespace tests
