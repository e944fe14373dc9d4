// SPDX-License-Identifier: Apache-2.0
// Heads and losses of embeddings on one rank: their parameters in real stores, and examples that
// are cut into passes and slices.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "base/random.hpp"
#include "models/losses/losses.hpp"
#include "tests/unit/silent_comm.hpp"

namespace embedding_rig {

using device::View;
using Floats = std::vector<float>;
using Doubles = std::vector<double>;

// A communicator of one rank, which copies what it gathers.
class OneRank : public SilentComm {
 public:
  comm::Ticket all_gather(View send, View recv, device::Queue& queue) override {
    if (send.data != recv.data) device::copy(recv, send, queue);
    return {};
  }
  comm::Ticket reduce_scatter(View send, View recv, device::Queue& queue) override {
    if (send.data != recv.data) device::copy(recv, send, queue);
    return {};
  }
};

struct Cuts {
  int64_t passes = 1, slices = 1;
};

class Bench {
 public:
  // batch: examples of a pass.
  Bench(const models::ParameterList& list, int64_t batch, Cuts cuts)
      : batch_(batch),
        cuts_(cuts),
        queue_(device::Kind::cpu, 2, true),
        layout_(list.parameters(), list.blocks(), {}, 1, 1),
        fabric_{layout_, mesh_of(mesh_), queue_, ledger_, true},
        weights_(fabric_, 1),
        gradients_(fabric_, 1),
        states_(fabric_),
        arena_(device::Kind::cpu, ledger_, "activations", int64_t{8} << 20),
        group_(mesh_, cuts.slices) {
    weights_.initialise(5);
    weights_.publish();
  }
  View weight(const std::string& path) {
    const shard::Parameter& p = parameter(path);
    return weights_.held(p.unit).slice(p.offset, p.size);
  }
  const shard::Parameter& parameter(const std::string& path) const {
    const int p = layout_.find(path);
    CHECK(p >= 0, "no parameter {}", path);
    return layout_.parameters()[size_t(p)];
  }
  View state(const std::string& path) { return states_.next(layout_.find(path)); }
  View gradient(const std::string& path) {
    const shard::Parameter& p = parameter(path);
    return gradients_.owned(p.unit).slice(p.offset, p.size);
  }
  void begin_step() {
    weights_.publish();
    gradients_.begin_step();
    gradients_.begin_micro_batch(0);
    states_.begin_step(weights_);
  }
  void finish_step() {
    gradients_.finish_step();
    float decided[3] = {1, 1, 1};
    states_.commit(weights_, device::view(decided, 3));
    weights_.publish(true);
  }
  nn::Context context(int64_t step, bool train = true) {
    return {{.queue = queue_, .arena = arena_},
            {.weights = weights_, .gradients = &gradients_, .states = &states_, .group = &group_},
            {.batch = batch_,
             .slices = cuts_.slices,
             .step = step,
             .pass = cuts_.passes - 1,
             .passes = cuts_.passes},
            {.train = train, .keep = train}};
  }
  const shard::Layout& layout() const { return layout_; }
  device::Arena& arena() { return arena_; }

 private:
  static comm::Mesh& mesh_of(comm::Mesh& mesh) {
    mesh.fsdp = std::make_unique<OneRank>();
    mesh.replica = std::make_unique<OneRank>();
    mesh.world = mesh.fsdp.get();
    return mesh;
  }
  int64_t batch_;
  Cuts cuts_;
  comm::Mesh mesh_;
  device::Queue queue_;
  device::Ledger ledger_;
  shard::Layout layout_;
  shard::Fabric fabric_;
  shard::WeightStore weights_;
  shard::GradientStore gradients_;
  shard::StateStore states_;
  device::Arena arena_;
  nn::BatchGroup group_;
};

// Returns seeded numbers, exact in float.
inline Doubles numbers(int64_t count, const std::string& name, double scale = 1, double shift = 0) {
  Doubles out;
  const base::Stream s(17, name);
  for (int64_t i = 0; i < count; ++i)
    out.push_back(double(float(shift + scale * s.normal(uint64_t(i)))));
  return out;
}
inline Floats floats(const Doubles& v) { return {v.begin(), v.end()}; }
inline View view(Floats& v) { return device::view(v.data(), int64_t(v.size())); }
inline Doubles doubles(View v) { return {v.f32(), v.f32() + v.count}; }

// Returns central differences of fourth order of f() by each of the values, which f reads.
inline Doubles differences(Doubles& values, const std::function<double()>& f, double h = 1e-3) {
  Doubles out;
  for (double& v : values) {
    const double before = v;
    auto with = [&](double step) {
      v = before + step;
      return f();
    };
    const double near = with(h) - with(-h), far = with(2 * h) - with(-2 * h);
    v = before;
    out.push_back((8 * near - far) / (12 * h));
  }
  return out;
}

inline void expect_close(const Doubles& got, const Doubles& want, double tolerance,
                         const std::string& what, double least = 0) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double largest = least, worst = 0;
  size_t at = 0;
  for (double w : want) largest = std::max(largest, std::abs(w));
  for (size_t i = 0; i < got.size(); ++i)
    if (const double error = std::abs(got[i] - want[i]); !(error <= worst)) {
      worst = error;
      at = i;
    }
  EXPECT_LE(worst, tolerance * largest)
      << what << ": element " << at << " is " << got[at] << ", not " << want[at];
  EXPECT_GT(largest, 0) << what << ": nothing to compare";
}

}  // namespace embedding_rig
