// SPDX-License-Identifier: Apache-2.0
#include "models/losses/step_batch.hpp"

#include "kernels/square_sums.hpp"
#include "models/block_scope.hpp"

namespace models {

void StepBatch::Slots::add(int into, int from) const {
  const View y = at[size_t(into)], x = at[size_t(from)];
  if (y.type == device::DType::f64)
    ctx.run(kernels::AddSums{.y = y, .a = y, .b = x});
  else
    ctx.run(kernels::Add{.y = y, .a = y, .b = x});
}

void copy_to_other_parts(nn::Context& ctx, const StepEmbeddings& step) {
  const StepEmbeddings::Part& from = step.parts.front();
  for (size_t m = 1; m < step.parts.size(); ++m) {
    const StepEmbeddings::Part& to = step.parts[m];
    ctx.run(kernels::Copy{.y = to.loss, .x = from.loss});
    for (size_t t = 0; t < to.terms.size(); ++t)
      ctx.run(kernels::Copy{.y = to.terms[t], .x = from.terms[t]});
  }
}

void add_parameter_gradients(nn::Context& ctx, const EmbeddingLoss& loss,
                             const StepEmbeddings::Part& part, int next) {
  const std::vector<int> parameters = loss.parameters();
  if (parameters.empty()) return;
  const int64_t examples = ctx.batch / ctx.slices;
  backward_block(ctx, loss.block(), next, [&] {
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (ctx.gradient(parameters[i]).view.none()) continue;
      nn::sum_over_slices(ctx, {parameters[i]}, [&](int64_t j, const auto& t) {
        ctx.run(kernels::ColumnSum{.out = t[0].view,
                                   .x = part.parameters[i].slice(j * examples, examples),
                                   .m = examples,
                                   .n = 1,
                                   .write = t[0].write});
      });
    }
  });
}

}  // namespace models
