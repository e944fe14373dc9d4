// SPDX-License-Identifier: Apache-2.0
// Tests the batch group and state tensors on every mesh of 1, 2 and 4 ranks. Sums, gathered tensors
// and the state that follows from them must have the bits of one rank alone. A step that is not
// applied must leave the state.

#include "kernels/cast.hpp"
#include "nn/batch_group.hpp"
#include "rank_checks.hpp"
#include "shard/state_store.hpp"

namespace {

using device::DType;
using device::View;
using Floats = std::vector<float>;
using tests::expect;

// Sizes of the global batch, which is one micro-batch.
constexpr int64_t kSlices = 16, kExamples = 48, kWidth = 37;
constexpr int64_t kRows = 41;  // of the states by rows

// Returns a number of an example, which depends only on its position in the batch.
double value(int64_t step, int64_t example, int64_t column) {
  return base::Stream(5, "example")
      .sub(uint64_t(step))
      .sub(uint64_t(example))
      .normal(uint64_t(column));
}

// Returns [slices, kWidth] of this rank: sums over the examples of each slice.
std::vector<double> slice_sums(const comm::Mesh& mesh, int64_t step) {
  const int64_t slices = kSlices / mesh.shape.ranks(), each = kExamples / kSlices;
  std::vector<double> sums(size_t(slices * kWidth));
  for (int64_t j = 0; j < slices; ++j)
    for (int64_t i = 0; i < each; ++i)
      for (int64_t c = 0; c < kWidth; ++c)
        sums[size_t(j * kWidth + c)] += value(step, (mesh.rank() * slices + j) * each + i, c);
  return sums;
}

struct Exchanged {
  std::vector<double> sums;
  Floats embeddings;
  std::vector<int32_t> labels;
};

Exchanged exchange(comm::Mesh& mesh, device::Queue& queue, int64_t step) {
  nn::BatchGroup group(mesh, kSlices / mesh.shape.ranks());
  std::vector<double> sums = slice_sums(mesh, step);
  const View total = group.sum({sums.data(), DType::f64, int64_t(sums.size())}, queue);
  const int64_t n = kExamples / group.ranks();
  Floats mine(size_t(n * 3)), all(size_t(kExamples * 3));
  std::vector<int32_t> labels(static_cast<size_t>(n)), all_labels(static_cast<size_t>(kExamples));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t c = 0; c < 3; ++c)
      mine[size_t(i * 3 + c)] = float(value(step, group.rank() * n + i, c));
    labels[size_t(i)] = int32_t(group.rank() * n + i);
  }
  group.gather(device::view(mine.data(), n * 3), device::view(all.data(), kExamples * 3), queue);
  group.gather({labels.data(), DType::i32, n}, {all_labels.data(), DType::i32, kExamples}, queue);
  return {{total.f64(), total.f64() + total.count}, all, all_labels};
}

// ---- state

std::vector<shard::Parameter> parameters() {
  using Kind = shard::Init::Kind;
  return {{.path = "stem/kernel",
           .shape = {5, 7},
           .init = {.kind = Kind::normal, .std = 1},
           .operand = true},
          {.path = "stem/mean", .shape = {kWidth}, .init = {}, .kind = shard::ParameterKind::state},
          {.path = "stem/scale", .shape = {3}, .init = {.kind = Kind::ones}},
          {.path = "loss/queue",
           .shape = {kExamples, 3},
           .init = {.kind = Kind::normal, .std = 1},
           .block = 1,
           .kind = shard::ParameterKind::state},
          {.path = "loss/place",
           .shape = {},
           .init = {},
           .block = 1,
           .kind = shard::ParameterKind::state},
          {.path = "loss/bank",
           .shape = {kRows, 3},
           .init = {.kind = Kind::normal, .std = 1},
           .block = 1,
           .kind = shard::ParameterKind::state,
           .by_rows = true},
          {.path = "loss/memory",
           .shape = {kRows, 5},
           .init = {.kind = Kind::normal, .std = 1},
           .block = 1,
           .kind = shard::ParameterKind::state,
           .by_rows = true}};
}

struct Outcome {
  std::vector<Floats> steps;  // concatenated state tensors after each step
};

// Writes rows of a state as a step does: two of them twice, and one of these in both calls.
void write_rows(shard::StateStore& states, int parameter, int64_t width, int64_t step) {
  for (int32_t call = 0; call < 2; ++call) {
    std::vector<int32_t> index = {int32_t(step), 17, int32_t(40 - step), 17, int32_t(step)};
    if (call) index = {30, int32_t(step), 0, 30, 31};
    states.touch(parameter, {index.data(), DType::i32, int64_t(index.size())});
    for (size_t i = 0; i < index.size(); ++i)
      for (int64_t c = 0; c < width; ++c)
        states.next(parameter).f32()[index[i] * width + c] = float(value(step, call, c));
  }
}

// Runs four steps with running means and a queue. The third step is not applied.
Outcome run(comm::Mesh& mesh, const char* where, const char* optimizer, DType operands) {
  device::Queue queue(device::Kind::cpu, 1, true);
  device::Ledger ledger;
  shard::ShardingOptions sharding;
  sharding.parameters = base::value_of(shard::kPlacementNames, where);
  sharding.optimizer = base::value_of(shard::kPlacementNames, optimizer);
  shard::Layout layout(parameters(), {"stem", "loss"}, sharding, mesh.shape.fsdp, kSlices);
  shard::Fabric fabric{layout, mesh, queue, ledger, true, operands};
  shard::WeightStore weights(fabric, 1);
  shard::StateStore states(fabric);
  weights.initialise(3);
  weights.publish();
  Outcome out;
  for (int64_t step = 1; step <= 4; ++step) {
    states.begin_step(weights);
    Exchanged found = exchange(mesh, queue, step);
    weights.acquire(0, 1);
    View mean = states.next(1);
    expect(std::equal(mean.f32(), mean.f32() + kWidth, weights.weight(1).f32()),
           "the next value begins as the present one");
    for (int pass = 0; pass < 2; ++pass)  // the second pass reads the mean that the first wrote
      for (int64_t c = 0; c < kWidth; ++c)
        mean.f32()[c] =
            0.75f * mean.f32()[c] + 0.25f * float(found.sums[size_t(c)] / double(kExamples));
    weights.release(0);
    weights.acquire(1, -1);
    std::copy(found.embeddings.begin(), found.embeddings.end(), states.next(3).f32());
    states.next(4).f32()[0] = weights.weight(4).f32()[0] + 1;
    for (int p : {5, 6}) {
      expect(std::equal(states.next(p).f32(), states.next(p).f32() + states.next(p).count,
                        weights.weight(p).f32()),
             "the next value of a state by rows is the present one");
      write_rows(states, p, p == 5 ? 3 : 5, step);
    }
    weights.release(1);
    float decided[3] = {1, 1, step == 3 ? 0.0f : 1.0f};
    states.commit(weights, device::view(decided, 3));
    weights.publish(true);
    Floats now;
    for (int block : {0, 1}) {
      weights.acquire(block, -1);
      for (int p : block == 0 ? std::vector<int>{1} : std::vector<int>{5, 6, 3, 4}) {
        const View v = weights.weight(p);
        now.insert(now.end(), v.f32(), v.f32() + v.count);
      }
      weights.release(block);
    }
    out.steps.push_back(now);
  }
  expect(out.steps[2] == out.steps[1], "a step that is not applied leaves the state");
  expect(out.steps[3] != out.steps[2] && out.steps[1] != out.steps[0],
         "an applied step changes the state");
  expect(out.steps[3].back() == 3, "three steps were counted");
  // A restore changes present values between two steps.
  const View held = weights.held(layout.parameters()[5].unit);
  std::fill_n(held.f32(), held.count, 0.5f);
  weights.publish();
  states.values_changed();
  states.begin_step(weights);
  for (int64_t i = 0; i < states.next(5).count; ++i)
    expect(states.next(5).f32()[i] == 0.5f,
           "the next value of a state by rows is the restored one");
  return out;
}

void on_paper(const comm::MeshShape& shape) {
  auto world = comm::make_plan_comm(shape.ranks());
  comm::Mesh mesh = comm::make_plan_mesh(shape, *world);
  device::Queue queue(device::Kind::plan);
  nn::BatchGroup group(mesh, 4);
  group.sum({nullptr, DType::f64, 4 * kWidth}, queue);
  group.gather({nullptr, DType::f32, 6}, {nullptr, DType::f32, 6 * shape.ranks()}, queue);
  auto both = [&](auto bytes_of) { return bytes_of(*mesh.fsdp) + bytes_of(*mesh.replica); };
  expect(both([](const comm::Comm& c) { return c.reduced().bytes; }) > 0 &&
             both([](const comm::Comm& c) { return c.gathered().bytes; }) > 0,
         "a plan counts the exchanges of the group");
}

int body(comm::Session& s, int, char**) {
  tests::session = &s;
  tests::Alone alone;
  device::Queue queue(device::Kind::cpu, 1, true);
  const Exchanged wanted = exchange(alone.mesh, queue, 1);
  for (int64_t i = 0; i < kExamples; ++i)
    expect(wanted.labels[size_t(i)] == i, "the order of examples");
  int cases = 0;
  for (int replica = 1; replica <= s.world().size(); replica *= 2) {
    comm::MeshShape shape{replica, s.world().size() / replica};
    comm::Mesh mesh = comm::make_mesh(s, shape, comm::SumOrder::tree);
    const std::string name = fmt::format("mesh {}x{}", shape.replica, shape.fsdp);
    const Exchanged found = exchange(mesh, queue, 1);
    expect(found.sums == wanted.sums, name + ": sums");
    expect(found.embeddings == wanted.embeddings && found.labels == wanted.labels,
           name + ": gathered tensors");
    if (s.world().size() > 1) on_paper(shape);
    for (DType operands : {DType::f32, DType::bf16})
      for (auto [where, optimizer] : {std::pair{"replicated", "replicated"},
                                      {"replicated", "sharded"},
                                      {"sharded", "sharded"}}) {
        const Outcome one = run(alone.mesh, where, optimizer, operands),
                      all = run(mesh, where, optimizer, operands);
        expect(one.steps == all.steps,
               fmt::format("{}, {} parameters, {} optimizer: state", name, where, optimizer));
        ++cases;
      }
  }
  tests::say(fmt::format("{} cases", cases));
  return tests::conclude("batch state");
}

}  // namespace

int main(int argc, char** argv) { return tests::run_ranks(argc, argv, body); }
