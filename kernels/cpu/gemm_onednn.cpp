// SPDX-License-Identifier: Apache-2.0
// CPU implementation of matrix products, by oneDNN. The first use of a shape makes a plan, which is
// kept; later uses run it on new data.
#include <cstring>

#include "kernels/cast.hpp"
#include "kernels/cpu/gemm_operands.hpp"
#include "kernels/cpu/gemm_plan.hpp"
#include "kernels/cpu/onednn_versions.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/portable.hpp"
#include "kernels/gelu.hpp"
#include "kernels/gemm.hpp"

namespace kernels {
namespace {

// Applies GELU or its derivative to the whole c, for products that run without blocks.
void activate_all(const Gemm& a, Queue& queue) {
  CHECK(a.leading_of_c() == a.n || (a.gelu.none() && a.gelu_of.none()),
        "gemm: GELU needs rows of c without gaps");
  if (!a.gelu.none()) run_cpu(GeluForward{.y = a.gelu, .x = a.c}, queue);
  if (!a.gelu_of.none()) run_cpu(GeluBackward{.dx = a.c, .dy = a.c, .x = a.gelu_of}, queue);
}

// Returns the product with such columns packed. The views are those of the caller.
Gemm with_packed_columns(Gemm g, const SpreadColumns& spread) {
  if (spread.a) g.lda = 0;
  if (spread.b) g.ldb = 0;
  if (spread.c) g.ldc = 0;
  return g;
}

void copy_column(char* to, int64_t to_step, const char* from, int64_t from_step, int64_t count,
                 int64_t size) {
  for (int64_t i = 0; i < count; ++i)
    std::memcpy(to + i * to_step * size, from + i * from_step * size, size_t(size));
}

// Runs a product whose spread columns the library would misread, on copies of them.
void run_packed(const Gemm& a, const SpreadColumns& spread, Queue& queue) {
  Gemm f = with_packed_columns(a, spread);
  thread_local std::vector<char> copies[3];
  auto pack = [](View& x, int64_t step, int64_t count, std::vector<char>& copy) {
    const int64_t size = size_of(x.type);
    copy.resize(size_t(count * size));
    copy_column(copy.data(), 1, static_cast<const char*>(x.data), step, count, size);
    x = {copy.data(), x.type, count};
  };
  if (spread.a) pack(f.a, a.leading_of_a(), a.k, copies[0]);
  if (spread.b) pack(f.b, a.leading_of_b(), a.k, copies[1]);
  if (spread.c) pack(f.c, a.leading_of_c(), a.m, copies[2]);
  run_cpu(f, queue);
  if (spread.c)
    copy_column(static_cast<char*>(a.c.data), a.leading_of_c(), copies[2].data(), 1, a.m,
                size_of(a.c.type));
}

// Runs the f32 product of widened bf16 operands.
void run_widened(const Gemm& a, Queue& queue) {
  Gemm f = a;
  WideBuffers& wide = wide_buffers();
  f.a = widened(a.a, wide.a, queue);
  f.b = widened(a.b, wide.b, queue);
  if (!a.bias.none() && a.bias.type != DType::f32) f.bias = widened(a.bias, wide.bias[0], queue);
  if (a.c.type == DType::f32) return run_cpu(f, queue);
  f.gelu = f.gelu_of = {};
  f.c = float_view(wide.c, a.m * a.n);
  f.ldc = 0;
  // If c has gaps between rows, the memory in the gaps must not change: each row is rounded alone.
  auto for_parts_of_c = [&](auto run_part) {
    for (int64_t r = 0, n = a.leading_of_c() == a.n ? a.m : 1; r < a.m; r += n)
      run_part(a.c.slice(r * a.leading_of_c(), n * a.n), f.c.slice(r * a.n, n * a.n));
  };
  if (a.write == Write::accumulate)
    for_parts_of_c([&](View c, View floats) { run_cpu(Cast{.y = floats, .x = c}, queue); });
  run_cpu(f, queue);
  for_parts_of_c([&](View c, View floats) { run_cpu(Cast{.y = c, .x = floats}, queue); });
  activate_all(a, queue);
}

void for_rows_of_c(const Gemm& a, Queue& queue, auto&& f) {
  float* c = a.c.f32();
  for_ranges(queue, a.m, a.m * a.n, 1, [&](int64_t r, int64_t end) {
    for (; r < end; ++r) f(c + r * a.leading_of_c(), r);
  });
}

}  // namespace

void run_cpu(const Gemm& a, Queue& queue) {
  CHECK(a.a.type != DType::f16, "{}: products of f16 are for GPUs", name_of(a.op));
  if (!a.sums.none()) {
    Gemm product = a;
    product.sums = {};
    run_cpu(product, queue);
    return run_cpu(sums_of(a), queue);
  }
  if (a.m == 0 || a.n == 0) return;
  if (a.k > 0 && (bits_are_portable() || portable_is_faster(a, queue)))
    return run_portable(a, queue);
  if (const SpreadColumns spread(a); misreads_columns() && spread.any())
    return run_packed(a, spread, queue);
  GemmKey key = key_of(a, queue);
  if (a.a.type == DType::bf16 && (a.k == 0 || !(key.narrow || key.widen)))
    return run_widened(a, queue);
  GemmOperands p = operands_of(a, 0, queue);
  if (a.k == 0) {  // an empty sum
    if (key.accumulate) return;
    for_rows_of_c(a, queue, [&](float* c, int64_t r) {
      for (int64_t j = 0; j < a.n; ++j)
        c[j] = (p.bias ? p.bias[j] : 0) + (p.residual ? p.residual[r * a.n + j] : 0);
    });
    return activate_all(a, queue);
  }
  if (key.residual && key.ldc != a.n) {
    // The library's binary post-op would read the residual with the stride of c. The residual is
    // copied to c, and the product is added to it.
    CHECK(!key.narrow_c, "gemm: a bf16 c with a leading dimension cannot have a residual");
    for_rows_of_c(a, queue, [&](float* c, int64_t r) {
      std::memcpy(c, p.residual + r * a.n, size_t(a.n) * sizeof(float));
    });
    key.residual = false;
    key.accumulate = true;
    p.residual = nullptr;
  }
  if (key.widen) p.b = static_cast<char*>(widened(a.b, wide_buffers().b, queue).data);
  plan_for(key).run(p, queue);
}

void prepare_cpu(const Gemm& given, const Queue& queue) {
  if (given.m == 0 || given.n == 0 || given.k == 0) return;
  if (bits_are_portable() || portable_is_faster(given, queue)) return;
  const Gemm a = misreads_columns() ? with_packed_columns(given, SpreadColumns(given)) : given;
  Gemm f = a;
  if (GemmKey key = key_of(a, queue);
      a.a.type == DType::bf16 && !(key.narrow || key.widen)) {  // run_widened will run it
    f.a.type = f.b.type = DType::f32;
    if (a.c.type == DType::bf16) {
      f.c.type = DType::f32;
      f.ldc = 0;
      f.gelu = f.gelu_of = {};
    }
  }
  plan_for(key_of(f, queue));
}

}  // namespace kernels
