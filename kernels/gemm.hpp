// SPDX-License-Identifier: Apache-2.0
// Matrix products and sums over rows.
//
// A product is c = op(a) . op(b) + bias + residual, or c += op(a) . op(b). Optional work on each
// block of c while it is in cache: gelu = GELU(c), or c *= the derivative of GELU at gelu_of.
// Optional sums = (or +=) the sum over the k rows of b. If c is the gradient of a kernel and b the
// gradient of an output, these sums are the gradient of the bias.
//
// a and b are both f32, both bf16 or (on GPUs) both f16. Products of 16-bit types are summed in
// f32; c is then f32 or of their type. A narrow c += is rounded once, after the sum. A CPU without
// bf16 instructions widens the operands, runs the f32 product and rounds the same values. A bias
// has c's type, because cuBLASLt's kernels add no other. On GPUs f32 operands are rounded to tf32
// if the queue's tf32() is true.
#pragma once

#include <span>
#include <vector>

#include "kernels/check_views.hpp"

namespace kernels {

// One product. It has many members because each operand has one, with its leading dimension, and
// one kernel can do all of the optional work. A caller sets only the members that it needs.
struct Gemm {
  static constexpr Op op = Op::gemm;
  View c;  // [m, n], row-major, leading dimension ldc (0 = n)
  // [m, k] with leading dimension lda (0 = k); with trans_a stored as [k, m] (0 = m)
  View a;
  // [k, n] with leading dimension ldb (0 = n); with trans_b stored as [n, k] (0 = k)
  View b;
  View bias{};      // optional [n], only with overwrite
  View residual{};  // optional [m, n] packed, added; only with overwrite; may not be c
  int64_t m = 0, n = 0, k = 0;
  bool trans_a = false, trans_b = false;
  Write write = Write::overwrite;
  int64_t lda = 0, ldb = 0, ldc = 0;
  // optional [m, n] packed, of c's type: only with overwrite; on CPUs it may be c
  View gelu{};
  View gelu_of{};  // optional, with the shape and the conditions of gelu
  // optional f32 [n], with f32 c, packed b that is not transposed, and none of the above
  View sums{};

  // Elements from one stored row to the next.
  int64_t leading_of_a() const { return lda ? lda : trans_a ? m : k; }
  int64_t leading_of_b() const { return ldb ? ldb : trans_b ? k : n; }
  int64_t leading_of_c() const { return ldc ? ldc : n; }
};
// Returns false, and runs nothing, if the products are not cut into the same blocks of rows.
bool run_cpu_by_rows(std::span<const Gemm> products, Queue& queue);
// Prepares run_cpu for the shape before its first use. The data need not exist.
void prepare_cpu(const Gemm&, const Queue&);

// CPUs multiply this many rows at a time if rows must be alike (Queue::rows_alike). oneDNN's
// kernels take 4, 6, 8, 16 or 48 rows at a time, and others take the rest. A multiple of 48 gives
// all rows one kernel. 144 rows reach 98 % of the speed of 224 rows (f32, AVX-512), and 96 rows
// reach 95 %. The last blocks are smaller, so that threads get equally many units; rows of
// padding fill the last unit.
constexpr int64_t kAlikeUnit = 48, kAlikeRows = 3 * kAlikeUnit;

bool is_one_kernel(const Gemm&);  // true if one kernel of cuBLASLt can do all of the product
size_t cuda_scratch(const Gemm&);
// Registers the shape for search_gemms (gemm_search.hpp).
void prepare_cuda(const Gemm&, const Queue&);
constexpr size_t kGemmWorkspace = size_t(32) << 20;  // bytes that cuBLASLt asks for on H100

// Calls and seconds of the calling thread's products, by shape. A benchmark reads them to run the
// same products alone.
struct GemmUse {
  int64_t m = 0, n = 0, k = 0;
  bool trans_a = false, trans_b = false, bias = false, residual = false, accumulate = false;
  int64_t calls = 0;
  double seconds = 0;
  DType type = DType::f32, result = DType::f32;  // of a and b; of c
  bool gelu = false, gelu_of = false;
};
// True if bf16 products run on bf16 instructions.
bool bf16_is_native();

std::vector<GemmUse> gemm_uses();
void reset_gemm_uses();

// out[n] = (or +=) sum over rows of x[m, n], for gradients of biases and of position tables. m
// alone fixes the order of the sum.
struct ColumnSum {
  static constexpr Op op = Op::column_sum;
  View out;  // [n]
  View x;    // [m, n], f32, bf16 or f16
  int64_t m = 0, n = 0;
  Write write = Write::overwrite;
};
size_t cuda_scratch(const ColumnSum&);

// Returns the op that computes a product's sums alone.
inline ColumnSum sums_of(const Gemm& a) {
  return {.out = a.sums, .x = a.b, .m = a.k, .n = a.n, .write = a.write};
}
bool sums_pay(const Gemm&, const Queue&);  // true if the search chose one kernel for both

inline void check(const ColumnSum& a) {
  need_size(a.op, "m", a.m);
  need_size(a.op, "n", a.n);
  need_view(a.op, "out", a.out, DType::f32, {a.n});
  need_activation(a.op, "x", a.x, {a.m, a.n});
}

inline Cost cost(const ColumnSum& a) {
  return {a.m * a.n, a.x.bytes() + 4 * ((a.write == Write::accumulate ? 2 : 1) * a.n)};
}

inline void check(const Gemm& a) {
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

inline Cost cost(const Gemm& a) {
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

// Runs at most 4 products, with the bits of running one after the other. A product may read results
// of earlier ones, and add to them, in the rows that it writes itself. On CPUs a thread runs all
// products for a block of rows before the next block, so rows that they share stay in cache.
inline void run_by_rows(std::span<const Gemm> products, Queue& queue) {
  if (queue.kind() == device::Kind::cpu && run_cpu_by_rows(products, queue)) return;
  for (const Gemm& a : products) run(a, queue);
}

// Runs both ops; sums.x is product.b. On GPUs one kernel (Gemm::sums) runs both if the search timed
// it as faster (gemm_search.hpp). The library has fewer kernels with sums, and they can be far
// slower than two separate kernels.
inline void run_with_sums(const Gemm& product, const ColumnSum& sums, Queue& queue) {
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
