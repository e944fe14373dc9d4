// SPDX-License-Identifier: Apache-2.0
// Calls of cuBLASLt for products, in the library's own terms.
//
// The library's matrices are column-major: a row-major [m, n] is its [n, m]. A call computes
// C^T = B^T A^T with b as the first operand. A bias over the n columns of c is thus the library's
// bias over rows. Sums over rows of b are its sums of the first operand over the common dimension
// (BGRADA), which it writes in c's type, f32. The other epilogue with sums also applies GELU's
// derivative, and would write the sums in the type of the activations.
#pragma once

#include <cublasLt.h>

#include <string>
#include <tuple>

#include "device/cuda_library.hpp"
#include "kernels/gemm.hpp"

#define LT(function) LIBRARY_FUNCTION("libcublasLt.so.13", function)

namespace kernels::cublaslt {

constexpr size_t kWorkspace = kGemmWorkspace;

// Returns the largest power of two up to 64 that divides an address. The choice of kernels depends
// on it. Activations have addresses that are multiples of 64, and plans know nothing else about
// them.
inline uint32_t alignment_of(const void* p) {
  uintptr_t address = reinterpret_cast<uintptr_t>(p) | 64;
  return uint32_t(address & ~(address - 1));
}

// One call of the library. The result d is c itself, gelu (c is then the auxiliary output), or f32
// scratch that finish_gemm reads. There are many members because the library takes an address, a
// type and a leading dimension for each operand, and key() must list all of them.
struct Call {
  bool fused = false;
  int64_t m = 0, n = 0, k = 0, lda = 0, ldb = 0, ldc = 0, ldd = 0, ld_aux = 0;
  bool trans_a = false, trans_b = false, tf32 = false;
  DType operands = DType::f32, c_type = DType::f32, d_type = DType::f32;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  float beta = 0;
  // Number of equal products in one call, and elements from each matrix to the next product's
  // matrix.
  int64_t batch = 1, next_a = 0, next_b = 0, next_d = 0;
  void *a = nullptr, *b = nullptr, *c = nullptr, *d = nullptr, *bias = nullptr, *aux = nullptr;

  auto key() const {
    return std::tuple(fused, m, n, k, lda, ldb, ldc, ldd, ld_aux, trans_a, trans_b, tf32, operands,
                      c_type, d_type, int(epilogue), beta,
                      std::tuple(batch, next_a, next_b, next_d),
                      std::tuple(alignment_of(a), alignment_of(b), alignment_of(c), alignment_of(d),
                                 alignment_of(bias), alignment_of(aux)));
  }
};

using Key = decltype(Call().key());

cudaDataType_t type_of(DType type);
void check_lt(cublasStatus_t status, const char* what, const Call& c);
cublasLtHandle_t handle(const Call& c);  // one per process; c is for messages

// Replaces scratch in plans and in keys of calls. Any aligned address serves.
inline void* const kSomeScratch = reinterpret_cast<void*>(4096);

// Returns the call that does all work of a product in one kernel. `scratch` receives sums to
// accumulate, because the library only overwrites sums.
Call fused_call(const Gemm& a, const Queue& queue, void* scratch = kSomeScratch);
// Returns the call of the product alone. finish_gemm reads its result.
Call product_call(const Gemm& a, void* workspace, const Queue& queue);

inline bool has_sums(const Call& call) { return call.epilogue == CUBLASLT_EPILOGUE_BGRADA; }

inline Call without_sums(Call call) {
  call.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  call.bias = nullptr;
  return call;
}
std::string text_of(const Call& c);  // names the shape in choices of algorithms

}  // namespace kernels::cublaslt
