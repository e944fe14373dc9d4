// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of products and column sums, and runs of several ops at once.
#include "kernels/gemm.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const Gemm& a) {
  need_size(a.op, "m", a.m);
  need_size(a.op, "n", a.n);
  need_size(a.op, "k", a.k);
  const bool narrow = a.a.type == DType::bf16 || a.a.type == DType::f16,
             narrow_c = narrow && a.c.type == a.a.type;
  const DType operands = narrow ? a.a.type : DType::f32;
  need_matrix(a.op, "c", a.c, narrow_c ? operands : DType::f32, a.m, a.n, a.leading_of_c());
  need_matrix(a.op, "a", a.a, operands, a.trans_a ? a.k : a.m, a.trans_a ? a.m : a.k,
              a.leading_of_a());
  need_matrix(a.op, "b", a.b, operands, a.trans_b ? a.n : a.k, a.trans_b ? a.k : a.n,
              a.leading_of_b());
  allow_view(a.op, "bias", a.bias, a.c.type, {a.n});
  allow_view(a.op, "residual", a.residual, DType::f32, {a.m, a.n});
  allow_view(a.op, "gelu", a.gelu, a.c.type, {a.m, a.n});
  allow_view(a.op, "gelu_of", a.gelu_of, a.c.type, {a.m, a.n});
  CHECK(a.write == Write::overwrite ||
            (a.bias.none() && a.residual.none() && a.gelu.none() && a.gelu_of.none()),
        "{}: bias, residual and GELU go with overwrite only", name_of(a.op));
  allow_view(a.op, "sums", a.sums, DType::f32, {a.n});
  const bool alone = a.bias.none() && a.residual.none() && a.gelu.none() && a.gelu_of.none();
  CHECK(a.sums.none() || (alone && !narrow_c && !a.trans_b && a.leading_of_b() == a.n),
        "{}: sums go with f32 c, packed b that is not transposed, and nothing else", name_of(a.op));
}

Cost cost(const Gemm& a) {
  const int64_t c = a.m * a.n;
  const int64_t adds = a.write == Write::accumulate ? device::size_of(a.c.type) * c : 0;
  const int64_t more = a.gelu.count + a.gelu_of.count;
  const int64_t sums = a.sums.none() ? 0 : cost(sums_of(a)).flops;
  const int64_t read = a.m * a.k + a.k * a.n, written = c + more;
  return {2 * c * a.k + 8 * more + sums,
          device::size_of(a.a.type) * read + device::size_of(a.c.type) * written + a.bias.bytes() +
              a.residual.bytes() + adds +
              4 * (a.write == Write::accumulate ? 2 : 1) * a.sums.count};
}

void check(const ColumnSum& a) {
  need_size(a.op, "m", a.m);
  need_size(a.op, "n", a.n);
  need_view(a.op, "out", a.out, DType::f32, {a.n});
  need_activation(a.op, "x", a.x, {a.m, a.n});
}

Cost cost(const ColumnSum& a) {
  return {a.m * a.n, a.x.bytes() + 4 * ((a.write == Write::accumulate ? 2 : 1) * a.n)};
}

void run_by_rows(std::span<const Gemm> products, Queue& queue) {
  if (queue.kind() == device::Kind::cpu && run_cpu_by_rows(products, queue)) return;
  for (const Gemm& a : products) run(a, queue);
}

void run_with_sums(const Gemm& product, const ColumnSum& sums, Queue& queue) {
  CHECK(sums.x.data == product.b.data && sums.m == product.k && sums.n == product.n,
        "{}: sums.x must be b of the product", name_of(Gemm::op));
  // A tf32 product rounds its f32 operands, and the library may sum the rounded values. ColumnSum
  // then computes the exact sums.
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
