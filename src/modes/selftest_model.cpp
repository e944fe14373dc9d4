// SPDX-License-Identifier: Apache-2.0
#include "modes/selftest_model.hpp"

#include <algorithm>
#include <bit>

#include "checkpoint/checkpoint.hpp"
#include "models/sample_count.hpp"
#include "modes/selftest_checks.hpp"
#include "train/run_state.hpp"

namespace modes::selftest {

const char* const kSmallDeck = R"(format = 1
run    = { name = "selftest", dir = "." }
train  = { data = "train", total_steps = 100, global_batch = 64 }
[model]
kind             = "cappa"
image_size       = 32
vocab_size       = 320
seq_len          = 12
encoder          = { patch = 8, depth = 2, width = 64, mlp = 128, heads = 2 }
decoder          = { depth = 1 }
[optimizer]
kind          = "adamw"
learning_rate = 1e-3
[schedule.default]
kind = "constant"
[data.train]
kind       = "synthetic"
image_size = 32
seq_len    = 12
vocab_size = 320
[checkpoint]
every_steps = 100
)";

models::HostBatch made_batch(const Features& features, uint64_t seed, int64_t first, int64_t n) {
  auto memory = std::make_shared<std::map<std::string, std::vector<float>>>();
  models::HostBatch batch{.features = {}, .examples = n, .first_position = first};
  for (const auto& [name, spec] : features) {
    if (spec.optional) continue;
    int64_t count = 1;
    for (const int64_t d : spec.shape) count *= d;
    std::vector<float>& bytes = (*memory)[name];
    bytes.resize(size_t(n * count * device::size_of(spec.type) / 4));
    const device::View values{bytes.data(), spec.type, n * count};
    for (int64_t e = 0; e < n; ++e) {
      const base::Stream draws = base::Stream(seed, name).sub(uint64_t(first + e));
      if (spec.type == device::DType::f32) {
        for (int64_t i = 0; i < count; ++i)
          values.f32()[e * count + i] =
              spec.pixels ? 2 * draws.uniform(uint64_t(i)) - 1 : draws.uniform(uint64_t(i));
        continue;
      }
      // A single number is the number of a class or an example. A list is a text: words, its end,
      // padding.
      int32_t* ids = values.i32() + e * count;
      const int64_t below = std::max<int64_t>(spec.below, 1);
      if (spec.shape.empty()) {
        *ids = int32_t((first + e) % below);
        continue;
      }
      const int64_t words = int64_t(draws.bits(0)) % count;
      for (int64_t i = 0; i < count; ++i)
        ids[i] = i < words    ? int32_t(std::min(2 + int64_t(draws.bits(uint64_t(i + 1))) %
                                                         std::max<int64_t>(below - 2, 1),
                                                 below - 1))
                 : i == words ? int32_t(std::min<int64_t>(1, below - 1))
                              : int32_t(spec.pad.value_or(0));
    }
    batch.features[name] = values;
  }
  batch.owner = std::move(memory);
  return batch;
}

step::EngineOptions engine_options(train::Recipe recipe, int ranks, int64_t each, int threads,
                                   device::Kind kind) {
  const bool power = std::has_single_bit(unsigned(ranks));
  const int64_t slices = power ? std::max(ranks, 2) : ranks;
  if (!power)
    recipe.determinism.level = step::Level::run;
  else if (!recipe.determinism.mesh())
    recipe.determinism.level = step::Level::mesh;
  recipe.determinism.slices = slices;
  recipe.train.global_batch = slices * each;
  recipe.train.micro_batch = 0;
  recipe.evals.clear();
  recipe.run.cuda_graph = recipe.profile.forbid_waits = false;
  // Rounding to 16 bits would hide what is compared.
  if (!power) recipe.precision.compute = host::Compute::f32;
  if (int64_t* samples = models::samples_left_to_data(recipe.model))
    *samples = std::max<int64_t>(4096, slices * each);
  step::EngineOptions o =
      recipe.engine(train::DataLength(1000 * recipe.train.global_batch), threads, kind);
  o.model = recipe.made_model();  // batches of this check have pixels as floats
  return o;
}

Needs plan_needs(const train::Recipe& recipe, int ranks, int threads, device::Kind kind) {
  Needs needs;
  // Models with groups of examples, as batch norms have, need slices that hold whole groups.
  for (needs.each = 1; needs.each <= 1024; needs.each *= 2) try {
      needs.problem.clear();
      for (const comm::MeshShape shape : {comm::MeshShape{1, ranks}, comm::MeshShape{ranks, 1}}) {
        const auto world = comm::make_plan_comm(ranks);
        comm::Mesh mesh = comm::make_plan_mesh(shape, *world);
        step::Engine engine(engine_options(recipe, ranks, needs.each, threads, kind), mesh,
                            device::Kind::plan);
        needs.bytes = std::max(needs.bytes, engine.ledger().total_peak());
        needs.flops = double(engine.model().train_flops()) * double(engine.geometry().global_batch);
      }
      return needs;
    } catch (const std::exception& e) {
      needs.problem = e.what();
    }
  return needs;
}

int64_t checkpoint_bytes(const Place& place) {
  try {
    const int ranks = place.ranks();
    const auto world = comm::make_plan_comm(ranks);
    comm::Mesh mesh = comm::make_plan_mesh({1, ranks}, *world);
    const Needs needs = plan_needs(place.recipe, ranks, place.threads, place.device.kind);
    if (!needs.problem.empty()) return 0;
    step::Engine engine(
        engine_options(place.recipe, ranks, needs.each, place.threads, place.device.kind), mesh,
        device::Kind::plan);
    train::RunState first(place.recipe, place.deck);
    first.step = 1;
    return checkpoint::planned_bytes(first.to_checkpoint(engine.state()));
  } catch (const std::exception&) {
    return 0;
  }
}

}  // namespace modes::selftest
