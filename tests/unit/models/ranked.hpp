// SPDX-License-Identifier: Apache-2.0
// Losses and ranks of images, computed from the logits of a model's heads.
#pragma once

#include <cmath>
#include <vector>

#include "models/classes/class_ranker.hpp"

namespace ranked {

// Each is [heads, batch], logits also [classes].
struct Numbers {
  std::vector<double> loss, rank;
  std::vector<float> logits;
};

// Runs the heads. On the plan back end, only counts their memory.
inline Numbers run(nn::Context& ctx, const models::ClassLogits& heads, device::View image,
                   device::View labels) {
  device::Arena::Scope scope(ctx.arena);
  const device::View kept = ctx.arena.temporary(heads.heads * ctx.batch * heads.classes);
  heads.run(ctx, image, kept, [](int64_t, device::View) {});
  Numbers out;
  if (ctx.queue.kind() == device::Kind::plan) return out;
  out.logits.assign(kept.f32(), kept.f32() + kept.count);
  for (int64_t row = 0; row < heads.heads * ctx.batch; ++row) {
    const float* x = kept.f32() + row * heads.classes;
    const float own = x[labels.i32()[row % ctx.batch]];
    double sum = 0, larger = 0;
    for (int64_t c = 0; c < heads.classes; ++c) {
      sum += std::exp(double(x[c]));
      larger += x[c] > own;
    }
    out.loss.push_back(std::log(sum) - double(own));
    out.rank.push_back(larger);
  }
  return out;
}

}  // namespace ranked
