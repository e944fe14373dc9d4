// SPDX-License-Identifier: Apache-2.0
// A small CapPa and made-up batches, pure functions of (seed, position), for tests of the engine on
// real ranks.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.hpp"
#include "models/caption_scorer.hpp"
#include "models/captions/cappa_options.hpp"
#include "optim/adafactor.hpp"
#include "optim/registry.hpp"
#include "step/engine.hpp"

namespace tests {

// It has many members, because tests combine all options that must not change any bit.
struct Case {
  comm::MeshShape mesh;
  int64_t micro_batch = 48;
  std::string parameters = "sharded", optimizer = "sharded", level = "mesh", recompute = "none",
              momentum_type = "bf16";
  std::string kind = "adafactor";
  int threads = 1;
  int64_t slices = 16, global_batch = 48;
  double dropout = 0;
  std::string frozen = "";  // regular expression
  bool bf16 = false;        // operands of products
  int64_t bucket_bytes = 4 << 10;
  bool reduces_after = false;

  std::string text() const {
    return fmt::format(
        "mesh={}x{} micro={} parameters={} optimizer={} level={} recompute={} momentum={} kind={} "
        "threads={} dropout={} bf16={} bucket={} after={}",
        mesh.replica, mesh.fsdp, micro_batch, parameters, optimizer, level, recompute,
        momentum_type, kind, threads, dropout, bf16, bucket_bytes, reduces_after);
  }
};

inline models::CappaOptions small_cappa(double dropout = 0) {
  models::CappaOptions m;
  m.image_size = 16;
  m.vocab_size = 61;
  m.seq_len = 9;
  m.masked_pred_prob = 0.5;
  m.masking_ratio = 0.7;
  m.encoder = {.variant = "",
               .patch = 8,
               .depth = 2,
               .width = 48,
               .mlp = 80,
               .heads = 3,
               .dropout = dropout};
  m.decoder = {.depth = 2, .width = 40, .mlp = 72, .heads = 4, .bias = true, .dropout = dropout};
  return m;
}

inline std::shared_ptr<models::Model> made_model(const Case& c, const std::string& kind,
                                                 std::shared_ptr<config::Table::Variant> options) {
  return models::make_model({kind, std::move(options)},
                            {base::value_of(models::kRecomputeNames, c.recompute)});
}
inline std::shared_ptr<models::Model> made_cappa(const Case& c,
                                                 const models::CappaOptions& options) {
  return made_model(c, "cappa", std::make_shared<models::CappaOptions>(options));
}

inline step::EngineOptions engine_options(const Case& c, int64_t total_steps) {
  step::EngineOptions o;
  o.model = made_cappa(c, small_cappa(c.dropout));
  o.passes = {[](const models::Model& model) {
    return dynamic_cast<const models::CaptionScorer&>(model).make_score_pass();
  }};
  o.sharding.parameters = base::value_of(shard::kPlacementNames, c.parameters);
  o.sharding.optimizer = base::value_of(shard::kPlacementNames, c.optimizer);
  o.bucket_bytes = c.bucket_bytes;
  o.reduces_after = c.reduces_after;
  o.determinism.level = c.level == "mesh" ? step::Level::mesh : step::Level::run;
  o.determinism.slices = c.slices;
  o.optimizer.kind = c.kind;
  if (c.kind == "adafactor") {
    auto adafactor = std::make_shared<optim::AdafactorOptions>();
    adafactor->momentum_type = c.momentum_type == "bf16" ? device::DType::bf16 : device::DType::f32;
    o.optimizer.method = adafactor;
  }
  o.optimizer.learning_rate = 1e-2;
  o.optimizer.weight_decay = 1e-3;
  o.optimizer.clip_norm = 1.0;
  if (!c.frozen.empty()) o.optimizer.rules = {{.match = c.frozen, .frozen = true}, {.match = ".*"}};
  o.groups = {"encoder/.*", "decoder/.*"};
  o.global_batch = c.global_batch;
  o.micro_batch = c.micro_batch;
  o.threads = c.threads;
  o.seed = 3;
  o.operands = c.bf16 ? device::DType::bf16 : device::DType::f32;
  o.resolve = [optimizer = o.optimizer, total_steps](
                  const std::vector<shard::Parameter>& parameters,
                  std::vector<optim::ParameterPolicy>& policies,
                  std::vector<optim::Schedule>& schedules) {
    optim::ScheduleTables tables;
    tables["default"].kind = "cosine";
    tables["default"].shape = optim::schedule_rows().at("cosine").make_options();
    tables["default"].warmup = {config::Duration::Unit::steps, 2};
    optim::Policies resolved = optim::resolve_policies(optimizer, tables, parameters);
    CHECK(resolved.problems.empty(), "{}",
          resolved.problems.empty() ? "" : resolved.problems[0].text);
    policies = resolved.parameters;
    schedules = optim::make_schedules(resolved.schedules, tables, {total_steps, 48, 480});
  };
  return o;
}

// Makes images and captions of the examples at [first, first + n).
struct MadeBatch {
  std::vector<float> image;
  std::vector<int32_t> labels;
  models::HostBatch host;
  MadeBatch(const models::CappaOptions& m, int64_t first, int64_t n) {
    int64_t pixels = m.image_size * m.image_size * 3;
    image.resize(size_t(n * pixels));
    labels.assign(size_t(n * m.seq_len), 0);
    for (int64_t i = 0; i < n; ++i) {
      base::Stream s = base::Stream(7, "made").sub(uint64_t(first + i));
      for (int64_t p = 0; p < pixels; ++p)
        image[size_t(i * pixels + p)] = 2 * s.uniform(uint64_t(p)) - 1;
      int64_t words = int64_t(s.bits(100000) % uint64_t(m.seq_len));  // 0: only the end token
      for (int64_t l = 0; l < words; ++l)
        labels[size_t(i * m.seq_len + l)] = 2 + int32_t(s.bits(uint64_t(100001 + l)) % 59);
      labels[size_t(i * m.seq_len + words)] = 1;
    }
    host = {.features = {{"image", device::view(image.data(), int64_t(image.size()))},
                         {"labels", device::view(labels.data(), int64_t(labels.size()))}},
            .examples = n,
            .first_position = first};
  }
};

// Owns a batch for as long as the engine needs it.
inline models::HostBatch owned(std::shared_ptr<MadeBatch> batch) {
  models::HostBatch host = batch->host;
  host.owner = std::move(batch);
  return host;
}

inline const step::StepReport& run_step(step::Engine& engine, comm::Mesh& mesh, int64_t step) {
  const auto options = small_cappa();
  return engine.step(step, [&](int64_t m) {
    const step::Geometry& g = engine.geometry();
    const int64_t first = (step - 1) * g.global_batch + g.first_example(mesh, m);
    return owned(std::make_shared<MadeBatch>(options, first, g.micro_batch));
  });
}

// Computes NLL and token weight of each example of a batch.
inline void score(step::Engine& engine, const models::HostBatch& batch, double* nll,
                  double* weight) {
  constexpr step::PassId kScore{0};
  auto& pass = engine.pass<models::ScorePass>(kScore);
  engine.forward(kScore, batch, [&](nn::Context& ctx, const models::Inputs& inputs) {
    pass.run(ctx, inputs, nll, weight);
  });
}

// Returns this rank's parts of the state, in the order of the tensors: the number of parts of each
// tensor, then begin, end and bytes of each part.
inline std::string own_state(step::Engine& engine) {
  std::string packed;
  auto add = [&](const int64_t& number) {
    packed.append(reinterpret_cast<const char*>(&number), sizeof number);
  };
  for (const shard::TensorSlice& slice : engine.state()) {
    add(slice.writes ? int64_t(slice.parts.size()) : 0);
    if (!slice.writes) continue;
    for (const auto& part : slice.parts) {
      add(part.begin);
      add(part.end);
      device::read_on_host(slice.view(part), engine.queue(), [&](const device::View& there) {
        packed.append(static_cast<const char*>(there.data), size_t(there.bytes()));
      });
    }
  }
  return packed;
}

// Returns every whole tensor of the state, at every rank: name -> bytes. One exchange brings all
// tensors, because each takes milliseconds under MPICH where ranks share cores.
inline std::map<std::string, std::string> whole_state(step::Engine& engine, comm::Comm& world) {
  const std::vector<std::string> of_ranks = world.gather_text(own_state(engine));
  std::vector<size_t> at(of_ranks.size(), 0);
  auto number = [&](size_t rank) {
    int64_t value = 0;
    std::memcpy(&value, of_ranks[rank].data() + std::exchange(at[rank], at[rank] + 8), 8);
    return value;
  };
  std::map<std::string, std::string> out;
  for (const shard::TensorSlice& slice : engine.state()) {
    int64_t count = 1, size = device::size_of(slice.type), written = 0;
    for (int64_t d : slice.shape) count *= d;
    std::string whole(size_t(count * size), '\xff');
    for (size_t rank = 0; rank < of_ranks.size(); ++rank)
      for (int64_t parts = number(rank); parts > 0; --parts) {
        const int64_t begin = number(rank), end = number(rank);
        std::memcpy(whole.data() + begin * size, of_ranks[rank].data() + at[rank],
                    size_t((end - begin) * size));
        at[rank] += size_t((end - begin) * size);
        written += end - begin;
      }
    CHECK(written == count, "{}: {} of {} elements are written by somebody", slice.name, written,
          count);
    out[slice.name] = whole;
  }
  return out;
}

}  // namespace tests
