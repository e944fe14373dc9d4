// SPDX-License-Identifier: Apache-2.0
// Weights for forward passes whose products have another type than in training (eval.NAME.compute).
// They read the f32 weights in the engine's stores. They keep only what the stores lack: rounded
// operands, and whole f32 weights where a rank holds a part.
#pragma once

#include <memory>

#include "optim/second_weights.hpp"

namespace step {

// The weights of a forward pass: raw as they are trained, or their average ([ema]).
enum class Weights { raw, ema };

class TypedWeights {
 public:
  // `fabric` has the type of the products. `ema` is null if no pass of this type runs on the
  // average. Both arguments must outlive this object.
  TypedWeights(const shard::Fabric& fabric, const shard::WeightStore& weights,
               optim::SecondWeights* ema)
      : ema_(ema), raw_{std::make_unique<shard::WeightStore>(fabric, 0, &weights, kAll)} {
    if (ema) average_.store = std::make_unique<shard::WeightStore>(fabric, 0, &ema->store(), kAll);
  }

  // Call it when weights or average have changed.
  void changed() { raw_.fresh = average_.fresh = false; }
  // Returns the weights in this type, and renews them after a change. All ranks call.
  shard::WeightStore& get(Weights on) {
    CHECK(on == Weights::raw || ema_, "no pass of this type was planned on the average");
    Kept& kept = on == Weights::ema ? average_ : raw_;
    if (!kept.fresh && on == Weights::ema) ema_->weights();
    if (!kept.fresh) kept.store->publish();
    kept.fresh = true;
    return *kept.store;
  }

 private:
  static constexpr auto kAll = shard::WeightStore::lend_all;
  struct Kept {
    std::unique_ptr<shard::WeightStore> store;
    bool fresh = false;
  };
  optim::SecondWeights* ema_;
  Kept raw_, average_;
};

}  // namespace step
