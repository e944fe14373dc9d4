// SPDX-License-Identifier: Apache-2.0
// The update that every optimizer makes around its own rule, in one pass over the elements. The
// steps come in big_vision's order:
//   g = gradient / clip.divisor * clip.factor     (divides first, as optax does)
//   g = (g + inner.decay * weight) * inner.ratio  (SGD, LARC and LARS as published: ssl.md 4)
//   d = the optimizer's direction for g
//   u = -schedule * (rate * d + decay * weight)
//   weight += u
// The pass also sums the squares of the new weights and of the updates u, in double. The count
// alone fixes the order of these sums.
#pragma once

#include "kernels/dispatch.hpp"

namespace kernels {

// The decision about a step's gradients: two numbers that clip them, 1 and 1 for no clipping. A
// decision made on a GPU (op clip_gradient) stays in its memory, as `decided`.
struct Clip {
  float divisor = 1, factor = 1;
  // Optional f32 [3] in the queue's memory, replaces the numbers: divisor, factor, apply. If apply
  // is 0, weights and state stay unchanged.
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

// Changes the clipped gradient before the optimizer's rule reads it: by weight decay within the
// gradient, and by a ratio of norms that scales both.
struct InnerDecay {
  float decay = 0, ratio = 1;
  // Optional f32 [2] in the queue's memory, replaces the numbers: ratio, decay (op trust_ratio).
  View trust{};

  struct Numbers {
    float decay, ratio;
    bool changes() const { return decay != 0 || ratio != 1; }
  };
  Numbers numbers() const {  // on the CPU only
    if (trust.none()) return {decay, ratio};
    return {trust.f32()[1], trust.f32()[0]};
  }
};

struct Update {
  View weights;   // f32 [count]
  View gradient;  // f32 [count]
  View sums;      // f64 [2]: sum of weight^2 after the update, sum of u^2
  Clip clip{};
  float rate = 0;   // learning rate times the parameter's scale
  float decay = 0;  // weight decay times the parameter's scale
  float schedule = 1;
  InnerDecay inner{};

  int64_t count() const { return weights.count; }
};

struct ApplyUpdate {  // d = g: plain gradient descent
  static constexpr Op op = Op::apply_update;
  Update update;
};
size_t cuda_scratch(const ApplyUpdate&);

inline void check(const Clip& a) {
  CHECK(a.decided.none() || (a.decided.type == DType::f32 && a.decided.count == 3),
        "a clip decision must be three f32");
}

inline void check(const Update& a) {
  check(a.clip);
  CHECK(a.weights.type == DType::f32 && a.gradient.type == DType::f32,
        "weights and gradients must be f32");
  CHECK(a.weights.count == a.gradient.count, "{} weights have {} gradients", a.weights.count,
        a.gradient.count);
  CHECK(a.sums.type == DType::f64 && a.sums.count == 2);
  CHECK(a.inner.trust.none() || (a.inner.trust.type == DType::f32 && a.inner.trust.count == 2),
        "a trust ratio must be two f32");
}

inline void check(const ApplyUpdate& a) { check(a.update); }

inline Cost cost(const ApplyUpdate& a) { return {3 * a.update.count(), 12 * a.update.count()}; }

}  // namespace kernels
