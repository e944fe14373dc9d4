// SPDX-License-Identifier: Apache-2.0
#include "models/losses/step_batch.hpp"

#include "kernels/square_sums.hpp"

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

}  // namespace models
