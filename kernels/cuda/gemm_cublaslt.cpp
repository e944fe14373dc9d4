// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of matrix products, by cuBLASLt. If the library has one kernel for all work
// of a product, that kernel computes bias, residual, GELU and its derivative. Otherwise finish_gemm
// does. Sums come from the product's kernel or from ColumnSum. The algorithm is the library's first
// proposal or the search's choice (gemm_search.hpp).
#include "device/cuda.hpp"
#include "kernels/cuda/gemm_finish.hpp"
#include "kernels/cuda/matmul_cublaslt.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/gemm.hpp"
#include "kernels/paths.hpp"

namespace kernels {
using namespace cublaslt;
namespace {

// The library's GELU may use a tanh with an error of 2^-11, which narrow results and tf32 do not
// show. f32 results get an exact one from finish_gemm.
bool is_one_call(const Gemm& a, const Queue& queue) {
  return is_one_kernel(a) && (!has_wide_gelu(a) || queue.tf32());
}

bool is_empty(const Gemm& a) { return a.m == 0 || a.n == 0 || a.k == 0; }

// Counts a call as a fallback: the library has no kernel that does all work of a product.
void refused(const Call& call, Queue& queue) {
  count_fallback("product: cuBLASLt has no kernel for " + text_of(call), queue);
}

void add_sums(const Gemm& a, void* more, Queue& queue) {
  if (a.write == Write::accumulate)
    run_cuda(Add{.y = a.sums, .a = a.sums, .b = device::view(static_cast<float*>(more), a.n)},
             queue);
}

void run_with_sums(const Gemm& a, Queue& queue) {
  if (!is_empty(a)) {
    char* workspace = static_cast<char*>(queue.scratch(cuda_scratch(a)));
    const Call call = fused_call(a, queue, workspace + kWorkspace);
    if (const Matmul& matmul = matmul_for(call); matmul.found) {
      execute(call, matmul, matmul.algorithm, workspace, queue);
      return add_sums(a, call.bias, queue);
    }
    refused(call, queue);
  }
  Gemm product = a;
  product.sums = {};
  run_cuda(product, queue);
  run_cuda(sums_of(a), queue);
}

}  // namespace

void run_cuda(const Gemm& a, Queue& queue) {
  if (!a.sums.none()) return run_with_sums(a, queue);
  if (a.m == 0 || a.n == 0) return;
  CHECK(a.residual.none() || a.residual.data != a.c.data, "gemm: residual may not be c");
  if (a.k == 0) {  // an empty sum
    if (a.write == Write::overwrite) finish_gemm(a, nullptr, queue);
    return;
  }
  if (is_one_call(a, queue)) {
    Call call = fused_call(a, queue);
    if (const Matmul& matmul = matmul_for(call); matmul.found)
      return execute(call, matmul, matmul.algorithm, queue.scratch(cuda_scratch(a)), queue);
    refused(call, queue);
  }
  // is_one_call may be true although the library has no kernel for the shape: such products come
  // here too.
  void* workspace = queue.scratch(kWorkspace + size_t(a.m * a.n) * sizeof(float));
  Call call = product_call(a, workspace, queue);
  const Matmul& matmul = matmul_for(call);
  if (!matmul.found)
    base::fail(base::Exit::mesh, "gemm [{}, {}] x [{}, {}] of {}: cuBLASLt has no kernel for it",
               a.m, a.k, a.k, a.n, device::name_of(a.a.type));
  execute(call, matmul, matmul.algorithm, workspace, queue);
  finish_gemm(a, static_cast<float*>(call.d), queue);
}

// Prepares the fused call if one kernel may do all work, else the plain one. Its data need not
// exist.
void prepare_cuda(const Gemm& a, const Queue& queue) {
  if (is_empty(a)) return;
  auto prepare = [](const Call& call) { shapes().prepared.try_emplace(call.key(), call); };
  if (is_one_call(a, queue)) return prepare(fused_call(a, queue));
  prepare(product_call(a, kSomeScratch, queue));
}

bool sums_pay(const Gemm& a, const Queue& queue) {
  return !is_empty(a) && shapes().chosen.count(fused_call(a, queue).key());
}

}  // namespace kernels
