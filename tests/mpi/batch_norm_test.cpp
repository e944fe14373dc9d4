// SPDX-License-Identifier: Apache-2.0
// Tests batch norm with groups inside a rank, over all ranks and over some of them, on every mesh
// of 1, 2 and 4 ranks. Outputs, gradients and running values must have the bits of one rank alone.
// After steps of several passes, running values and parameter gradients must have them, too.
#include "nn/batch_norm.hpp"

#include <cmath>

#include "rank_checks.hpp"

namespace {

using device::DType;
using device::View;
using Floats = std::vector<float>;
using tests::expect;

constexpr int64_t kSlices = 8, kExamples = 48, kWidth = 7;
const nn::ImageSize kSize{2, 2, 1}, kSmall{1, 1, 1};

std::vector<shard::Parameter> parameters() {
  using Kind = shard::Init::Kind;
  using shard::ParameterKind;
  return {
      {.path = "bn/weight", .shape = {kWidth}, .init = {.kind = Kind::normal, .std = 1}},
      {.path = "bn/bias", .shape = {kWidth}, .init = {.kind = Kind::normal, .std = 1}},
      {.path = "bn/running_mean", .shape = {kWidth}, .init = {}, .kind = ParameterKind::state},
      {.path = "bn/running_var",
       .shape = {kWidth},
       .init = {.kind = Kind::ones},
       .kind = ParameterKind::state},
      {.path = "bn/num_batches_tracked", .shape = {}, .init = {}, .kind = ParameterKind::state}};
}

// Returns numbers of examples [first, first + n), which depend on the position alone.
Floats made(const char* name, int64_t first, int64_t n, int64_t per_example) {
  Floats out;
  for (int64_t b = first; b < first + n; ++b)
    for (int64_t i = 0; i < per_example; ++i)
      out.push_back(float(0.5 + base::Stream(5, name).sub(uint64_t(b)).normal(uint64_t(i))));
  return out;
}

struct Outcome {
  std::vector<Floats> passes;  // of this rank: y and dx of both sizes
  Floats gradients, states;
};

// Runs a step of `passes` passes over the global batch.
Outcome run(comm::Mesh& mesh, int64_t group, int64_t passes) {
  device::Queue queue(device::Kind::cpu, 1, true);
  device::Ledger ledger;
  const int64_t ranks = mesh.shape.ranks();
  shard::Layout layout(parameters(), {"bn"}, {}, mesh.shape.fsdp, kSlices);
  shard::Fabric fabric{layout, mesh, queue, ledger, true, DType::f32};
  shard::WeightStore weights(fabric, 0);
  shard::GradientStore gradients(fabric, passes);
  shard::StateStore states(fabric);
  device::Arena arena(device::Kind::cpu, ledger, "activations", int64_t{4} << 20);
  weights.initialise(3);
  weights.publish();
  states.begin_step(weights);
  gradients.begin_step();
  const int64_t slices = kSlices / ranks / passes, n = kExamples / ranks / passes;
  nn::BatchGroup examples(mesh, slices);
  const nn::BatchNorm norm{.scale = 0,
                           .bias = 1,
                           .running_mean = 2,
                           .running_variance = 3,
                           .batches = 4,
                           .width = kWidth,
                           .group_examples = group};
  Outcome out;
  for (int64_t m = 0; m < passes; ++m) {
    nn::Context ctx{
        {.queue = queue, .arena = arena},
        {.weights = weights, .gradients = &gradients, .states = &states, .group = &examples},
        {.batch = n, .slices = slices, .pass = m, .passes = passes, .last = m + 1 == passes},
        {.train = true}};
    device::Arena::Scope scope(arena);
    gradients.begin_micro_batch(m);
    weights.acquire(0, -1);
    gradients.open(0);
    const int64_t first =
        ((mesh.replica_index * passes + m) * mesh.shape.fsdp + mesh.fsdp_index) * n;
    std::vector<nn::BatchNorm::Passed> all;
    std::vector<Floats> kept;
    kept.reserve(8);
    for (const nn::ImageSize& size : {kSize, kSmall}) {
      const int64_t count = size.pixels() * kWidth;
      auto keep = [&](Floats values) {
        return device::view(kept.emplace_back(std::move(values)).data(), n * count);
      };
      const View x = keep(made(all.empty() ? "x" : "small", first, n, count)),
                 y = keep(Floats(size_t(n * count), NAN)), dy = keep(made("dy", first, n, count)),
                 dx = keep(Floats(size_t(n * count), NAN));
      const nn::BatchNorm::Saved saved = norm.make_saved(ctx, false);
      norm.forward(ctx, x, size, saved, y, true, {int64_t(all.size()), 2});
      all.push_back({.x = x, .saved = saved, .size = size, .dy = dy, .dx = dx});
    }
    norm.backward(ctx, all, true);
    gradients.close(0);
    weights.release(0);
    Floats results;
    for (size_t i : {1, 3, 5, 7}) results.insert(results.end(), kept[i].begin(), kept[i].end());
    out.passes.push_back(results);
  }
  gradients.finish_step();
  for (int p : {0, 1}) {
    const shard::Parameter& of = layout.parameters()[size_t(p)];
    const View g = gradients.owned(of.unit).slice(of.offset, of.size);
    out.gradients.insert(out.gradients.end(), g.f32(), g.f32() + g.count);
  }
  for (int p : {2, 3, 4}) {
    const View next = states.next(p);
    out.states.insert(out.states.end(), next.f32(), next.f32() + next.count);
  }
  return out;
}

// Returns this rank's part of a pass that one rank ran alone.
Floats part_of(const Floats& whole, const comm::Mesh& mesh) {
  Floats out;
  size_t at = 0;
  for (const nn::ImageSize& size : {kSize, kSmall})
    for (int k = 0; k < 2; ++k) {
      const int64_t each = size.pixels() * kWidth * kExamples / mesh.shape.ranks();
      const auto begin = whole.begin() + int64_t(at) + mesh.rank() * each;
      out.insert(out.end(), begin, begin + each);
      at += size_t(size.pixels() * kWidth * kExamples);
    }
  return out;
}

// The running values after both sizes, by the formulas of ssl.md 1.4.
void check_running(const Floats& got, int64_t group) {
  for (int64_t j = 0; j < kWidth; ++j) {
    double mean = 0, variance = 1;
    for (const nn::ImageSize& size : {kSize, kSmall}) {
      const int64_t count = size.pixels() * kWidth, in_group = group ? group : kExamples;
      const Floats x = made(size == kSize ? "x" : "small", 0, kExamples, count);
      double means = 0, variances = 0;
      const int64_t rows = in_group * size.pixels(), groups = kExamples / in_group;
      for (int64_t g = 0; g < groups; ++g) {
        double m = 0, v = 0;
        auto at = [&](int64_t r) { return double(x[size_t((g * rows + r) * kWidth + j)]); };
        for (int64_t r = 0; r < rows; ++r) m += at(r) / double(rows);
        for (int64_t r = 0; r < rows; ++r) v += (at(r) - m) * (at(r) - m) / double(rows - 1);
        means += m / double(groups);
        variances += v / double(groups);
      }
      mean = 0.9 * mean + 0.1 * means;
      variance = 0.9 * variance + 0.1 * variances;
    }
    expect(std::abs(double(got[size_t(j)]) - mean) < 1e-6 &&
               std::abs(double(got[size_t(kWidth + j)]) - variance) < 1e-6,
           fmt::format("groups of {}: running values of channel {}", group, j));
  }
  expect(got.back() == 2, "two calls were counted");
}

int body(comm::Session& s, int, char**) {
  tests::session = &s;
  tests::Alone alone;
  const int ranks = s.world().size();
  // Parts of a slice, slices, several slices, and the examples of several ranks.
  for (int64_t group : {2, 3, 6, 12, 24, 0}) {
    const Outcome one = run(alone.mesh, group, 1);
    check_running(one.states, group);
    for (int replica = 1; replica <= ranks; replica *= 2) {
      comm::Mesh mesh = comm::make_mesh(s, {replica, ranks / replica}, comm::SumOrder::tree);
      const std::string name =
          fmt::format("groups of {} on {}x{}", group, replica, ranks / replica);
      const Outcome all = run(mesh, group, 1);
      expect(all.passes[0] == part_of(one.passes[0], mesh), name + ": outputs and gradients of x");
      expect(all.gradients == one.gradients, name + ": gradients of scale and bias");
      expect(all.states == one.states, name + ": running values");
      for (int64_t passes = 2; passes * ranks <= kSlices; passes *= 2) {
        if (group == 0 || group > kExamples / passes / replica) continue;
        const Outcome split = run(mesh, group, passes);
        expect(split.gradients == one.gradients,
               fmt::format("{}: gradients of {} passes", name, passes));
        expect(split.states == one.states,
               fmt::format("{}: running values of {} passes", name, passes));
      }
    }
  }
  return tests::conclude("batch norm");
}

}  // namespace

int main(int argc, char** argv) { return tests::run_ranks(argc, argv, body); }
