// SPDX-License-Identifier: Apache-2.0
// The update that every optimizer makes around its own rule, in one pass over the elements, in
// big_vision's order of transformations:
//   g = gradient / clip.divisor * clip.factor           divide first, as optax does; 1 and 1 = not
//   clipped d = the optimizer's direction for g u = -schedule * (rate * d + decay * weight) weight
//   += u
// It also sums the squares of the new weights and of the updates u, in double, in an order that
// follows from the count alone.
#pragma once

#include "kernels/dispatch.hpp"

namespace kernels {

// The decision that the inspection of a step's gradients made. A decision made on a GPU (op
// clip_gradient) stays there: `decided` then replaces the two numbers.
struct Clip {
  float divisor = 1, factor = 1;
  // Optional f32 [3] in the queue's memory: divisor, factor, apply. apply = 0: weights and state
  // stay.
  View decided{};

  struct Numbers {
    float divisor, factor;
    bool apply;
  };
  Numbers numbers() const {  // on the CPU only
    if (decided.none()) return {divisor, factor, true};
    return {decided.f32()[0], decided.f32()[1], decided.f32()[2] != 0};
  }
};
void check(const Clip&);

struct Update {
  View weights;   // f32 [count]
  View gradient;  // f32 [count]
  View sums;      // f64 [2]: of weight^2 (after), of u^2
  Clip clip{};
  float rate = 0;   // learning rate times the parameter's scale
  float decay = 0;  // weight decay times the parameter's scale
  float schedule = 1;

  int64_t count() const { return weights.count; }
};
void check(const Update&);

struct ApplyUpdate {  // d = g: plain gradient descent
  static constexpr Op op = Op::apply_update;
  Update update;
};
size_t cuda_scratch(const ApplyUpdate&);

}  // namespace kernels
