// Products on the GPU by cuBLASLt: bias, residual, GELU and its derivative go into the product's own kernel where the library
// has one for the shape, and into finish_gemm otherwise.
//
// cuBLASLt thinks in columns: a row-major [m, n] is its column-major [n, m]. So it is asked for C^T = B^T A^T, with b as its
// first operand, and a bias over the n columns of c is its bias over rows.
#include <cublasLt.h>

#include <map>
#include <tuple>

#include "device/cuda.hpp"
#include "device/cuda_library.hpp"
#include "kernels/gemm.hpp"
#include "kernels/gemm_finish.hpp"

#define LT(function) LIBRARY_FUNCTION("libcublasLt.so.13", function)

namespace kernels {
namespace {

constexpr size_t kWorkspace = size_t(32) << 20;  // what the library asks for on H100

void check_lt(cublasStatus_t status, const char* what, const Gemm& a) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  base::fail(base::Exit::mesh, "gemm [{}, {}] x [{}, {}] on the GPU: {}: {}", a.m, a.k, a.k, a.n, what,
             LT(cublasLtGetStatusName)(status));
}

cublasLtHandle_t handle(const Gemm& a) {
  static cublasLtHandle_t one = nullptr;
  if (!one) check_lt(LT(cublasLtCreate)(&one), "starting cuBLASLt", a);
  return one;
}

cudaDataType_t type_of(DType type) {
  return type == DType::bf16 ? CUDA_R_16BF : type == DType::f16 ? CUDA_R_16F : CUDA_R_32F;
}
int64_t or_else(int64_t leading, int64_t packed) { return leading ? leading : packed; }

// The largest power of two up to 256 that divides an address: kernels are chosen by it.
uint32_t alignment_of(const void* p) {
  uintptr_t address = reinterpret_cast<uintptr_t>(p) | 256;
  return uint32_t(address & ~(address - 1));
}

// The library's call in its own terms. `into` is where the product goes: c itself, gelu (then c is the auxiliary output), or
// f32 scratch that finish_gemm reads.
struct Call {
  bool fused = false;
  int64_t m = 0, n = 0, k = 0, lda = 0, ldb = 0, ldc = 0, ldd = 0, ld_aux = 0;
  bool trans_a = false, trans_b = false, tf32 = false;
  DType operands = DType::f32, c_type = DType::f32, d_type = DType::f32;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  float beta = 0;
  void *a = nullptr, *b = nullptr, *c = nullptr, *d = nullptr, *bias = nullptr, *aux = nullptr;

  auto key() const {
    return std::tuple(fused, m, n, k, lda, ldb, ldc, ldd, ld_aux, trans_a, trans_b, tf32, operands, c_type, d_type, int(epilogue),
                      beta, std::tuple(alignment_of(a), alignment_of(b), alignment_of(c), alignment_of(d), alignment_of(bias),
                                       alignment_of(aux)));
  }
};

Call plain_call(const Gemm& a, void* d, DType d_type, int64_t ldd, const Queue& queue) {
  return {.m = a.n,
          .n = a.m,
          .k = a.k,
          .lda = or_else(a.ldb, a.trans_b ? a.k : a.n),
          .ldb = or_else(a.lda, a.trans_a ? a.m : a.k),
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

// All in one kernel. The library has no epilogue for a bias before GELU's derivative, and wants a residual of c's type.
bool can_fuse(const Gemm& a) {
  return (a.bias.none() || a.gelu_of.none()) && (a.gelu.none() || a.gelu_of.none()) &&
         (a.residual.none() || a.c.type == DType::f32);
}
Call fused_call(const Gemm& a, const Queue& queue) {
  int64_t ldc = or_else(a.ldc, a.n);
  Call call = plain_call(a, a.c.data, a.c.type, ldc, queue);
  call.fused = true;
  if (!a.gelu.none()) {
    call.d = call.c = a.gelu.data, call.ldd = call.ldc = a.n;
    call.aux = a.c.data, call.ld_aux = ldc;
    call.epilogue = a.bias.none() ? CUBLASLT_EPILOGUE_GELU_AUX : CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  } else if (!a.gelu_of.none()) {
    call.aux = a.gelu_of.data, call.ld_aux = a.n;
    call.epilogue = CUBLASLT_EPILOGUE_DGELU;
  } else if (!a.bias.none()) {
    call.epilogue = CUBLASLT_EPILOGUE_BIAS;
  }
  call.bias = a.bias.data;
  if (!a.residual.none()) call.c = a.residual.data, call.ldc = a.n, call.beta = 1;
  if (a.write == Write::accumulate) call.beta = 1;
  return call;
}

struct Plan {
  bool found = false;
  cublasLtMatmulDesc_t matmul = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr, d = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

template <class T>
void set(cublasLtMatmulDesc_t matmul, cublasLtMatmulDescAttributes_t attribute, T value, const Gemm& a) {
  check_lt(LT(cublasLtMatmulDescSetAttribute)(matmul, attribute, &value, sizeof value), "describing it", a);
}
template <class T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, T value, const Gemm& a) {
  check_lt(LT(cublasLtMatmulPreferenceSetAttribute)(preference, attribute, &value, sizeof value), "describing it", a);
}

void point_epilogue(const Plan& plan, const Call& call, const Gemm& a) {
  if (call.bias) set<const void*>(plan.matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.bias, a);
  if (call.aux) set<void*>(plan.matmul, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, call.aux, a);
}

// The library's first choice for the shape, which is the same in every run: so are the bits.
Plan make_plan(const Call& call, const Gemm& a) {
  Plan plan;
  check_lt(LT(cublasLtMatmulDescCreate)(&plan.matmul, call.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
           "describing it", a);
  set(plan.matmul, CUBLASLT_MATMUL_DESC_TRANSA, call.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N, a);
  set(plan.matmul, CUBLASLT_MATMUL_DESC_TRANSB, call.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N, a);
  set(plan.matmul, CUBLASLT_MATMUL_DESC_EPILOGUE, call.epilogue, a);
  if (call.bias) set(plan.matmul, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F, a);
  if (call.aux) {
    set(plan.matmul, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, call.ld_aux, a);
    set(plan.matmul, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, type_of(call.d_type), a);
  }
  point_epilogue(plan, call, a);  // the choice looks at their alignment
  auto layout = [&](cublasLtMatrixLayout_t* out, DType type, int64_t rows, int64_t columns, int64_t leading) {
    check_lt(LT(cublasLtMatrixLayoutCreate)(out, type_of(type), uint64_t(rows), uint64_t(columns), leading), "describing it", a);
  };
  layout(&plan.a, call.operands, call.trans_a ? call.k : call.m, call.trans_a ? call.m : call.k, call.lda);
  layout(&plan.b, call.operands, call.trans_b ? call.n : call.k, call.trans_b ? call.k : call.n, call.ldb);
  layout(&plan.c, call.c_type, call.m, call.n, call.ldc);
  layout(&plan.d, call.d_type, call.m, call.n, call.ldd);

  cublasLtMatmulPreference_t preference = nullptr;
  check_lt(LT(cublasLtMatmulPreferenceCreate)(&preference), "describing it", a);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace, a);
  // Not "in place": there the parts of a cut k are added in the order in which they come.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE), a);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(call.a), a);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(call.b), a);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(call.c), a);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(call.d), a);
  cublasLtMatmulHeuristicResult_t result{};
  int count = 0;
  cublasStatus_t status = LT(cublasLtMatmulAlgoGetHeuristic)(handle(a), plan.matmul, plan.a, plan.b, plan.c, plan.d, preference,
                                                             1, &result, &count);
  LT(cublasLtMatmulPreferenceDestroy)(preference);
  // What an epilogue lacks comes as either status; of a plain product it is an error, which the caller tells.
  plan.found = status == CUBLAS_STATUS_SUCCESS && count > 0;
  plan.algorithm = result.algo;
  return plan;
}

const Plan& plan_for(const Call& call, const Gemm& a) {
  static std::map<decltype(call.key()), Plan> plans;  // shapes are fixed for a run; kept to its end
  auto [it, added] = plans.try_emplace(call.key());
  if (added) it->second = make_plan(call, a);
  return it->second;
}

void execute(const Call& call, const Plan& plan, const Gemm& a, void* workspace, Queue& queue) {
  point_epilogue(plan, call, a);
  const float one = 1;
  check_lt(LT(cublasLtMatmul)(handle(a), plan.matmul, &one, call.a, plan.a, call.b, plan.b, &call.beta, call.c, plan.c, call.d,
                              plan.d, &plan.algorithm, workspace, kWorkspace, device::stream_of(queue)),
           "running it", a);
}

}  // namespace

void run_cuda(const Gemm& a, Queue& queue) {
  if (a.m == 0 || a.n == 0) return;
  CHECK(a.residual.none() || a.residual.data != a.c.data, "gemm: residual may not be c");
  if (a.k == 0) {  // an empty sum
    if (a.write == Write::overwrite) finish_gemm(a, nullptr, queue);
    return;
  }
  if (can_fuse(a)) {
    Call call = fused_call(a, queue);
    if (const Plan& plan = plan_for(call, a); plan.found) return execute(call, plan, a, queue.scratch(kWorkspace), queue);
  }
  char* scratch = static_cast<char*>(queue.scratch(kWorkspace + size_t(a.m * a.n) * sizeof(float)));
  float* product = reinterpret_cast<float*>(scratch + kWorkspace);
  Call call = plain_call(a, product, DType::f32, a.n, queue);
  const Plan& plan = plan_for(call, a);
  if (!plan.found)
    base::fail(base::Exit::mesh, "gemm [{}, {}] x [{}, {}] of {}: cuBLASLt has no kernel for it", a.m, a.k, a.k, a.n,
               device::name_of(a.a.type));
  execute(call, plan, a, scratch, queue);
  finish_gemm(a, product, queue);
}

}  // namespace kernels
