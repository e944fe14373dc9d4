// SPDX-License-Identifier: Apache-2.0
// Calls of cuBLASLt for products: their parameters, and their text in choices of algorithms.
#include "kernels/cuda/call_cublaslt.hpp"

namespace kernels::cublaslt {

cudaDataType_t type_of(DType type) {
  return type == DType::bf16 ? CUDA_R_16BF : type == DType::f16 ? CUDA_R_16F : CUDA_R_32F;
}

void check_lt(cublasStatus_t status, const char* what, const Call& c) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  base::fail(base::Exit::mesh, "gemm [{}, {}] x [{}, {}] on the GPU: {}: {}", c.n, c.k, c.k, c.m,
             what, LT(cublasLtGetStatusName)(status));
}

cublasLtHandle_t handle(const Call& c) {
  static cublasLtHandle_t one = nullptr;
  if (!one) check_lt(LT(cublasLtCreate)(&one), "starting cuBLASLt", c);
  return one;
}

namespace {

Call plain_call(const Gemm& a, void* d, DType d_type, int64_t ldd, const Queue& queue) {
  return {.m = a.n,
          .n = a.m,
          .k = a.k,
          .lda = a.leading_of_b(),
          .ldb = a.leading_of_a(),
          .ldc = ldd,
          .ldd = ldd,
          .trans_a = a.trans_b,
          .trans_b = a.trans_a,
          .tf32 = queue.tf32() && a.a.type == DType::f32,
          .operands = a.a.type,
          .c_type = d_type,
          .d_type = d_type,
          .a = a.b.data,
          .b = a.a.data,
          .c = d,
          .d = d};
}

}  // namespace

Call fused_call(const Gemm& a, const Queue& queue, void* scratch) {
  int64_t ldc = a.leading_of_c();
  Call call = plain_call(a, a.c.data, a.c.type, ldc, queue);
  call.fused = true;
  if (!a.gelu.none()) {
    call.d = call.c = a.gelu.data;
    call.ldd = call.ldc = a.n;
    call.aux = a.c.data;
    call.ld_aux = ldc;
    call.epilogue = a.bias.none() ? CUBLASLT_EPILOGUE_GELU_AUX : CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  } else if (!a.gelu_of.none()) {
    call.aux = a.gelu_of.data;
    call.ld_aux = a.n;
    call.epilogue = CUBLASLT_EPILOGUE_DGELU;
  } else if (!a.bias.none()) {
    call.epilogue = CUBLASLT_EPILOGUE_BIAS;
  }
  call.bias = a.bias.data;
  if (!a.sums.none()) {
    call.epilogue = CUBLASLT_EPILOGUE_BGRADA;
    call.bias = a.write == Write::accumulate ? scratch : a.sums.data;
  }
  if (!a.residual.none()) {
    call.c = a.residual.data;
    call.ldc = a.n;
    call.beta = 1;
  }
  if (a.write == Write::accumulate) call.beta = 1;
  return call;
}

Call product_call(const Gemm& a, void* workspace, const Queue& queue) {
  return plain_call(a, static_cast<char*>(workspace) + kWorkspace, DType::f32, a.n, queue);
}

std::string text_of(const Call& c) {
  const std::string many =
      c.batch > 1 ? fmt::format(" batch {} next {} {} {}", c.batch, c.next_a, c.next_b, c.next_d)
                  : "";
  return fmt::format(
      "{}{}{}{} {}x{}x{} ld {} {} {} {} {} {} {} {} epilogue {} beta {} aligned {} {} {} {} {} {}"
      "{}",
      c.fused ? "fused" : "plain", c.tf32 ? " tf32" : "", c.trans_a ? " ta" : "",
      c.trans_b ? " tb" : "", c.m, c.n, c.k, c.lda, c.ldb, c.ldc, c.ldd, c.ld_aux,
      device::name_of(c.operands), device::name_of(c.c_type), device::name_of(c.d_type),
      int(c.epilogue), c.beta, alignment_of(c.a), alignment_of(c.b), alignment_of(c.c),
      alignment_of(c.d), alignment_of(c.bias), alignment_of(c.aux), many);
}

}  // namespace kernels::cublaslt
