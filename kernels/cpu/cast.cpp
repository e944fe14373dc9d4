// SPDX-License-Identifier: Apache-2.0
// CPU implementation of casts between f32 and bf16.
#include "kernels/cast.hpp"

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels {

void run_cpu(const Cast& a, Queue& queue) {
  const VectorTable& table = vector_table();
  for_ranges(queue, a.x.count, a.x.count, 64, [&](int64_t i, int64_t end) {
    if (a.y.type == DType::bf16)
      table.to_bf16(a.y.bf16() + i, a.x.f32() + i, end - i);
    else
      table.from_bf16(a.y.f32() + i, a.x.bf16() + i, end - i);
  });
}

}  // namespace kernels
