// Sums of a pass over its examples, from the losses of the rows that were predicted: what metrics are made of, and whether the
// loss is finite.
#pragma once

#include "kernels/dispatch.hpp"

namespace kernels {

// What is summed over the examples of a slice. Nothing is divided.
struct LossColumns {
  enum Index { loss, loss_ar, loss_parallel, examples_ar, examples_parallel, tokens, token_nll, count };
};

// For each example: n = sum of its weights, nll = sum of weight * loss over its positions whose weight is above 0, in double, in
// order; its loss is nll / n, or 0 where n is 0. sums[j] = the sums over slice j's examples, in order.
struct LossSums {
  static constexpr Op op = Op::loss_sums;
  View sums;      // f64 [slices, LossColumns::count]
  View loss;      // f32 [any]: of the rows that were predicted
  View first;     // i32 [batch]: where an example's rows begin: one for each of its positions whose weight is above 0
  View weights;   // f32 [batch, length]
  View causal{};  // optional u8 [batch]: 0 = predicted in parallel; none: nobody is
  int64_t batch = 0, length = 0, slices = 1;
};
void check(const LossSums&);
Cost cost(const LossSums&);
void run_cpu(const LossSums&, Queue&);
void run_cuda(const LossSums&, Queue&);

// One example's, of its rows and its weights.
struct ExampleLoss {
  double n = 0, nll = 0, tokens = 0;
  constexpr double loss() const { return n > 0 ? nll / n : 0; }
};
constexpr ExampleLoss example_loss(const float* loss, const float* weights, int64_t length) {
  ExampleLoss e;
  for (int64_t l = 0; l < length; ++l) {
    const double weight = double(weights[l]);
    e.n += weight;
    if (!(weight > 0)) continue;
    e.nll += weight * double(*loss++);
    e.tokens += 1;
  }
  return e;
}
constexpr void add_example(double* sums, const ExampleLoss& e, bool parallel) {
  using C = LossColumns;
  sums[C::loss] += e.loss();
  sums[parallel ? C::loss_parallel : C::loss_ar] += e.loss();
  sums[parallel ? C::examples_parallel : C::examples_ar] += 1;
  sums[C::tokens] += e.tokens, sums[C::token_nll] += e.nll;
}

}  // namespace kernels
