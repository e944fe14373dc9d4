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

#include "kernels/dispatch.hpp"

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
// Runs at most 4 products, with the bits of running one after the other. A product may read results
// of earlier ones, and add to them, in the rows that it writes itself. On CPUs a thread runs all
// products for a block of rows before the next block, so rows that they share stay in cache.
void run_by_rows(std::span<const Gemm> products, Queue& queue);
// Returns false, and runs nothing, if the products are not cut into the same blocks of rows.
bool run_cpu_by_rows(std::span<const Gemm> products, Queue& queue);
// Prepares run_cpu for the shape before its first use. The data need not exist.
void prepare_cpu(const Gemm&, const Queue&);

// CPUs multiply this many rows at a time if rows must be alike (Queue::rows_alike). oneDNN's
// kernels take 4, 6, 8, 16 or 48 rows at a time, and others take the rest. A multiple of 48 gives
// all rows one kernel. 144 rows reach 98 % of the speed of 224 (f32, AVX-512), 96 reach 95 %. The
// last blocks are smaller, so that threads get equally many units; rows of padding fill the last
// unit.
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
// Runs both ops; sums.x is product.b. On GPUs one kernel (Gemm::sums) runs both if the search timed
// it as faster (gemm_search.hpp). The library has fewer kernels with sums, and they can be far
// slower than two separate kernels.
void run_with_sums(const Gemm& product, const ColumnSum& sums, Queue& queue);
bool sums_pay(const Gemm&, const Queue&);  // true if the search chose one kernel for both

}  // namespace kernels
