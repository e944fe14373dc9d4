// What every optimizer does around its own rule, in one pass over the elements (big_vision's order of transformations):
//   g = gradient / clip_divisor * clip_factor           divide first, as optax does; 1 and 1 = not clipped
//   d = the optimizer's direction for g
//   u = -schedule * (rate * d + decay * weight)
//   weight += u
// and the sums of squares of the new weights and of the updates u, in double, in an order that follows from the count
// alone.
#pragma once

#include "kernels/dispatch.hpp"

namespace kernels {

struct Update {
  View weights;   // f32 [count]
  View gradient;  // f32 [count]
  View sums;      // f64 [2]: of weight^2 (after), of u^2
  float clip_divisor = 1, clip_factor = 1;
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
void check(const ApplyUpdate&);
Cost cost(const ApplyUpdate&);
void run_cpu(const ApplyUpdate&, Queue&);
void run_cuda(const ApplyUpdate&, Queue&);

}  // namespace kernels
