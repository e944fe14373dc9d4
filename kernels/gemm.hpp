// Matrix product: c = op(a) . op(b) + bias + residual, or c += op(a) . op(b); and what is done to each block of c while it is in
// cache: gelu = GELU(c), or c *= the derivative of GELU at gelu_of. And sums (+)= the sum over the k rows of b, as c is written:
// where c is the gradient of a kernel and b that of an output, that is the gradient of the bias.
//
// a and b are both f32, or both bf16 or (on GPUs) f16: then products are summed in f32, and c is f32 or (with overwrite) of their
// type. Where the CPU has no bf16 instructions the operands are widened and the f32 product runs: the same values are rounded.
// A bias is of c's type: cuBLASLt adds no other one in its own kernel.
// On GPUs f32 operands are rounded to tf32 if the queue says so.
#pragma once

#include <span>
#include <vector>

#include "kernels/dispatch.hpp"

namespace kernels {

struct Gemm {
  static constexpr Op op = Op::gemm;
  View c;                 // [m, n], row-major, leading dimension ldc (0 = n)
  View a;                 // [m, k] with leading dimension lda (0 = k); trans_a: stored [k, m] (0 = m)
  View b;                 // [k, n] with leading dimension ldb (0 = n); trans_b: stored [n, k] (0 = k)
  View bias{};            // optional [n], only with overwrite
  View residual{};        // optional [m, n] packed, added; only with overwrite; may not be c
  int64_t m = 0, n = 0, k = 0;
  bool trans_a = false, trans_b = false;
  Write write = Write::overwrite;
  int64_t lda = 0, ldb = 0, ldc = 0;
  View gelu{};            // optional [m, n] packed, of c's type: only with overwrite
  View gelu_of{};         // the same
  View sums{};            // optional f32 [n], with f32 c, packed b that is not transposed, and none of the above

  // Elements from one stored row to the next.
  int64_t leading_of_a() const { return lda ? lda : trans_a ? m : k; }
  int64_t leading_of_b() const { return ldb ? ldb : trans_b ? k : n; }
  int64_t leading_of_c() const { return ldc ? ldc : n; }
};
// Products of which each may read, of what those before it made, the rows that it makes itself, and may add to them; at most 4.
// Results are those of one after the other, to the bit. On CPUs a thread runs all of them for some rows before it takes others
// (if they are cut into the same blocks of rows): what they share is in cache.
void run_by_rows(std::span<const Gemm> products, Queue& queue);
bool run_cpu_by_rows(std::span<const Gemm> products, Queue& queue);  // whether they could be run so
// Makes what run_cpu makes at the first use of a shape; the data need not exist.
void prepare_cpu(const Gemm&, const Queue&);
// Of run_cuda: whether one kernel of the library does all of it, the scratch it takes, and what makes the shape known to
// search_gemms (gemm_search.hpp).
bool is_one_kernel(const Gemm&);
size_t cuda_scratch(const Gemm&);
void prepare_cuda(const Gemm&, const Queue&);
constexpr size_t kGemmWorkspace = size_t(32) << 20;  // what the library asks for on H100

// What the calling thread's products took, by shape: a benchmark runs the same ones alone.
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

// out[n] = (+=) sum over rows of x[m, n]: bias gradients, position-table gradients. Order of the sum is fixed by m alone.
struct ColumnSum {
  static constexpr Op op = Op::column_sum;
  View out;               // [n]
  View x;                 // [m, n], f32, bf16 or f16
  int64_t m = 0, n = 0;
  Write write = Write::overwrite;
};
size_t cuda_scratch(const ColumnSum&);

// Those of a product, alone.
inline ColumnSum sums_of(const Gemm& a) { return {.out = a.sums, .x = a.b, .m = a.k, .n = a.n, .write = a.write}; }
// Both, sums.x being product.b. On GPUs by one kernel (Gemm::sums) where that was timed and found faster (gemm_search.hpp): the
// library's kernels with sums are fewer, and can be far slower than two of which each is the best.
void run_with_sums(const Gemm& product, const ColumnSum& sums, Queue& queue);
bool sums_pay(const Gemm&, const Queue&);

}  // namespace kernels
