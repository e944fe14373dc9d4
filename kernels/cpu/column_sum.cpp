#include <cstring>

#include "base/narrow.hpp"
#include "kernels/check_views.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/row_blocks.hpp"
#include "kernels/cpu/vector_table.hpp"
#include "kernels/gemm.hpp"

namespace kernels {

void check(const ColumnSum& a) {
  need_size(a.op, "m", a.m);
  need_size(a.op, "n", a.n);
  need_view(a.op, "out", a.out, DType::f32, {a.n});
  need_activation(a.op, "x", a.x, {a.m, a.n});
}

Cost cost(const ColumnSum& a) {
  return {a.m * a.n, a.x.bytes() + 4 * ((a.write == Write::accumulate ? 2 : 1) * a.n)};
}

namespace {
// partial[block][stride] = the block's sums
template <class T>
void block_sums(const ColumnSum& a, const RowBlocks& blocks, float* partial, int64_t stride, const T* x,
                const ActivationLoops<T>& loops, Queue& queue) {
  for_ranges(queue, blocks.count(), a.m * a.n, 1, [&](int64_t b, int64_t end) {
    for (; b < end; ++b) {
      float* sums = partial + b * stride;
      std::memset(sums, 0, size_t(stride) * sizeof(float));
      loops.add_rows(sums, x + blocks.begin(b) * a.n, blocks.end(b) - blocks.begin(b), a.n);
    }
  });
}
}  // namespace

void run_cpu(const ColumnSum& a, Queue& queue) {
  float* out = a.out.f32();
  RowBlocks blocks(a.m);
  int64_t stride = base::round_up(a.n, 16);
  float* partial = static_cast<float*>(queue.scratch(size_t(blocks.count() * stride) * sizeof(float)));
  vector_table().with(a.x.type, [&](const auto& loops, auto element) {
    block_sums(a, blocks, partial, stride, static_cast<decltype(element)*>(a.x.data), loops, queue);
  });
  for_ranges(queue, a.n, a.n * blocks.count(), 64, [&](int64_t begin, int64_t end) {
    if (a.write == Write::overwrite) std::memset(out + begin, 0, size_t(end - begin) * sizeof(float));
    for (int64_t b = 0; b < blocks.count(); ++b) {
      const float* sums = partial + b * stride;
      for (int64_t j = begin; j < end; ++j) out[j] += sums[j];
    }
  });
}

void run_with_sums(const Gemm& product, const ColumnSum& sums, Queue& queue) {
  CHECK(sums.x.data == product.b.data && sums.m == product.k && sums.n == product.n, "{}: the sums of another matrix",
        name_of(Gemm::op));
  // Not by products that round f32 operands: the library may add the rounded ones.
  const bool exact = !queue.tf32() || product.b.type != DType::f32;
  if (queue.device() == device::Kind::cuda && product.write == sums.write && exact) {
    Gemm both = product;
    both.sums = sums.out;
    if (queue.kind() == device::Kind::plan) {
      if (queue.prepares()) prepare_cuda(both, queue);
      queue.need_scratch(cuda_scratch(both));
    } else if (sums_pay(both, queue)) {
      return run(both, queue);
    }
  }
  run(product, queue);
  run(sums, queue);
}

}  // namespace kernels
