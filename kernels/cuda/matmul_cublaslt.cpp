// SPDX-License-Identifier: Apache-2.0
// Descriptions, algorithms and runs of cuBLASLt's products.
#include "kernels/cuda/matmul_cublaslt.hpp"

#include "device/cuda.hpp"

namespace kernels::cublaslt {
namespace {

template <class T>
void set(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute, T value,
         const Call& c) {
  check_lt(LT(cublasLtMatmulDescSetAttribute)(description, attribute, &value, sizeof value),
           "describing it", c);
}
template <class T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
         T value, const Call& c) {
  check_lt(LT(cublasLtMatmulPreferenceSetAttribute)(preference, attribute, &value, sizeof value),
           "describing it", c);
}
template <class T>
void set(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, T value,
         const Call& c) {
  check_lt(LT(cublasLtMatrixLayoutSetAttribute)(layout, attribute, &value, sizeof value),
           "describing it", c);
}

void point_epilogue(const Matmul& matmul, const Call& call) {
  if (call.bias)
    set<const void*>(matmul.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.bias, call);
  if (call.aux)
    set<void*>(matmul.description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, call.aux, call);
}

}  // namespace

Matmul describe(const Call& call) {
  Matmul matmul;
  check_lt(LT(cublasLtMatmulDescCreate)(
               &matmul.description, call.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
               CUDA_R_32F),
           "describing it", call);
  set(matmul.description, CUBLASLT_MATMUL_DESC_TRANSA, call.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N,
      call);
  set(matmul.description, CUBLASLT_MATMUL_DESC_TRANSB, call.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N,
      call);
  set(matmul.description, CUBLASLT_MATMUL_DESC_EPILOGUE, call.epilogue, call);
  if (call.bias)
    set(matmul.description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(call.d_type), call);
  if (call.aux) {
    set(matmul.description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, call.ld_aux, call);
    set(matmul.description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, type_of(call.d_type),
        call);
  }
  point_epilogue(matmul, call);  // proposals depend on the alignment of these pointers
  auto layout = [&](cublasLtMatrixLayout_t* out, DType type, int64_t rows, int64_t columns,
                    int64_t leading, int64_t next) {
    check_lt(LT(cublasLtMatrixLayoutCreate)(out, type_of(type), uint64_t(rows), uint64_t(columns),
                                            leading),
             "describing it", call);
    if (call.batch == 1) return;
    set(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, int32_t(call.batch), call);
    set(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, next, call);
  };
  layout(&matmul.a, call.operands, call.trans_a ? call.k : call.m, call.trans_a ? call.m : call.k,
         call.lda, call.next_a);
  layout(&matmul.b, call.operands, call.trans_b ? call.n : call.k, call.trans_b ? call.k : call.n,
         call.ldb, call.next_b);
  layout(&matmul.c, call.c_type, call.m, call.n, call.ldc, call.next_d);
  layout(&matmul.d, call.d_type, call.m, call.n, call.ldd, call.next_d);
  return matmul;
}

std::vector<cublasLtMatmulAlgo_t> proposals(const Matmul& matmul, const Call& call, int most) {
  cublasLtMatmulPreference_t preference = nullptr;
  check_lt(LT(cublasLtMatmulPreferenceCreate)(&preference), "describing it", call);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace, call);
  // Reductions "in place" add the parts of a cut k in the order of arrival, so they are excluded.
  // Products are summed in f32, so reductions in a 16-bit result type are excluded too.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      uint32_t(call.d_type == DType::f32
                   ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE
                   : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE),
      call);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(call.a), call);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(call.b), call);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(call.c), call);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(call.d), call);
  cublasLtMatmulHeuristicResult_t results[kProposals] = {};
  int count = 0;
  cublasStatus_t status =
      LT(cublasLtMatmulAlgoGetHeuristic)(handle(call), matmul.description, matmul.a, matmul.b,
                                         matmul.c, matmul.d, preference, most, results, &count);
  LT(cublasLtMatmulPreferenceDestroy)(preference);
  std::vector<cublasLtMatmulAlgo_t> out;
  for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; ++i)
    if (results[i].state == CUBLAS_STATUS_SUCCESS) out.push_back(results[i].algo);
  return out;
}

Shapes& shapes() {
  static Shapes all;
  return all;
}

const Matmul& matmul_for(const Call& call) {
  auto [it, added] = shapes().matmuls.try_emplace(call.key());
  Matmul& matmul = it->second;
  if (!added) return matmul;
  matmul = describe(call);
  auto chosen = shapes().chosen.find(call.key());
  if (chosen != shapes().chosen.end()) {
    matmul.algorithm = chosen->second;
    matmul.found = true;
  } else if (std::vector<cublasLtMatmulAlgo_t> first = proposals(matmul, call, 1); !first.empty()) {
    matmul.algorithm = first[0];
    matmul.found = true;
  }
  return matmul;
}

void execute(const Call& call, const Matmul& matmul, const cublasLtMatmulAlgo_t& algorithm,
             void* workspace, Queue& queue) {
  point_epilogue(matmul, call);
  const float one = 1;
  check_lt(LT(cublasLtMatmul)(handle(call), matmul.description, &one, call.a, matmul.a, call.b,
                              matmul.b, &call.beta, call.c, matmul.c, call.d, matmul.d, &algorithm,
                              workspace, kWorkspace, device::stream_of(queue)),
           "running it", call);
}

}  // namespace kernels::cublaslt
