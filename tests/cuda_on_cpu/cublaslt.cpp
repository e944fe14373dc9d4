// SPDX-License-Identifier: Apache-2.0
// Computes the products of cuBLASLt, in column-major terms, with the plainest loops. It refuses
// everything that the real library refuses or may refuse: a bias of another type than the result,
// and epilogues whose leading dimensions are not multiples of 8 elements. It refuses pointers with
// less alignment than the algorithm was proposed for, or than 16 bytes for pointers of an epilogue.
// It rounds operands to tf32 where the caller allows it.
//
// There are four algorithms for everything. The first adds in double precision, the others in
// float. The last one cuts k in two and keeps the sums of the parts in the workspace, so it needs a
// workspace and the right reduction scheme. CUBLASLT_ON_CPU_FASTEST=N makes algorithm N report the
// least time. With CUDA_ON_CPU_PERTURB, products of narrow operands add as tensor cores do.
//
// CUBLASLT_ON_CPU_REFUSE lists features without kernels: gelu, dgelu, bias, batch, split.
// CUBLASLT_ON_CPU_WORKSPACE=BYTES: every algorithm needs a workspace of this size. Products with
// sums (BGRADA) report the time of other products. CUBLASLT_ON_CPU_SUMS=fast halves this time, and
// "none" removes their kernels.
#include "cublasLt.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#include "kernels/bf16_value.hpp"
#include "kernels/f16_value.hpp"
#include "watch.hpp"

struct EmulatedLt {};
struct EmulatedPreference {
  uint32_t alignments[4] = {256, 256, 256, 256};  // of a, b, c and d, unless the caller says less
  uint32_t schemes = ~0u;
  uint64_t workspace = 0;
};
struct EmulatedLayout {
  cudaDataType_t type;
  int64_t rows, columns, ld;
  int32_t batch = 1;
  int64_t next = 0;  // elements from one matrix of a batch to the next
};
struct EmulatedMatmul {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cublasOperation_t transa = CUBLAS_OP_N, transb = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  void* aux = nullptr;
  int64_t aux_ld = 0;
  cudaDataType_t bias_type = CUDA_R_32F, aux_type = CUDA_R_32F;
};

namespace {

// marks algorithms that the heuristic has returned
constexpr uint64_t kMark = 4711, kAlgorithms = 4;
bool is_ours(const cublasLtMatmulAlgo_t& a) {
  return a.data[0] >= kMark && a.data[0] < kMark + kAlgorithms;
}

float read(const void* at, int64_t i, cudaDataType_t type) {
  if (type == CUDA_R_32F) return static_cast<const float*>(at)[i];
  const uint16_t bits = static_cast<const uint16_t*>(at)[i];
  return type == CUDA_R_16F ? to_float(kernels::loops::F16{bits})
                            : to_float(kernels::loops::Bf16{bits});
}
void write(void* at, int64_t i, cudaDataType_t type, float x) {
  if (type == CUDA_R_32F)
    static_cast<float*>(at)[i] = x;
  else
    static_cast<uint16_t*>(at)[i] = type == CUDA_R_16F ? kernels::loops::round_to_f16(x).bits
                                                       : kernels::loops::round_to_bf16(x).bits;
}

// Returns the nearest number with 10 bits of mantissa.
float round_to_tf32(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  return std::isfinite(x) ? std::bit_cast<float>((u + 0xFFF + (u >> 13 & 1)) & ~0x1FFFu) : x;
}

size_t bytes_of(const EmulatedLayout& l, int64_t ld) {
  return size_t((l.columns - 1) * ld + l.rows) * (l.type == CUDA_R_32F ? 4 : 2);
}
// Returns the operand as packed columns of k elements: [count of columns][k].
std::vector<float> columns_of(const void* at, const EmulatedLayout& l, bool by_rows, int64_t count,
                              int64_t k, cublasComputeType_t compute) {
  std::vector<float> out(size_t(count * k));
  cuda_on_cpu::reads(at, bytes_of(l, l.ld));
  for (int64_t i = 0; i < count; ++i)
    for (int64_t t = 0; t < k; ++t)
      out[size_t(i * k + t)] = read(at, by_rows ? i + t * l.ld : t + i * l.ld, l.type);
  if (compute == CUBLAS_COMPUTE_32F_FAST_TF32)
    for (float& x : out) x = round_to_tf32(x);
  return out;
}

bool has_bias(int epilogue) { return (epilogue & CUBLASLT_EPILOGUE_BIAS) != 0; }
bool has_aux(int epilogue) { return (epilogue & 128) != 0; }
bool has_sums(int epilogue) { return epilogue == CUBLASLT_EPILOGUE_BGRADA; }
// The alignments of a, b, c and d that an algorithm relies on, in 16 bits each.
uint64_t packed(const uint32_t (&alignments)[4]) {
  uint64_t out = 0;
  for (uint32_t alignment : alignments) out = out << 16 | alignment;
  return out;
}
bool is_aligned(const void* p, uint64_t to) { return reinterpret_cast<uintptr_t>(p) % to == 0; }
bool are_aligned(std::initializer_list<const void*> pointers, uint64_t alignments) {
  int shift = 64;
  for (const void* p : pointers)
    if (!is_aligned(p, alignments >> (shift -= 16) & 0xffff)) return false;
  return true;
}
// Epilogues read and write their vectors and second results in units of 16 bytes.
bool is_for_epilogue(const void* p) { return p && is_aligned(p, 16); }
bool has_places(const EmulatedMatmul& m) {
  return (is_for_epilogue(m.bias) || !(has_bias(m.epilogue) || has_sums(m.epilogue))) &&
         (is_for_epilogue(m.aux) || !has_aux(m.epilogue));
}

bool is_set(const char* variable, const char* what) {
  const char* set = std::getenv(variable);
  return set && !std::strcmp(set, what);
}
bool sums_are(const char* what) { return is_set("CUBLASLT_ON_CPU_SUMS", what); }
bool refuses(const std::string& what) {
  const char* set = std::getenv("CUBLASLT_ON_CPU_REFUSE");
  return set && ("," + std::string(set) + ",").find("," + what + ",") != std::string::npos;
}
bool refuses_epilogue(int epilogue) {
  const bool derivative = epilogue == CUBLASLT_EPILOGUE_DGELU;
  return (has_aux(epilogue) && refuses(derivative ? "dgelu" : "gelu")) ||
         (has_bias(epilogue) && refuses("bias"));
}

constexpr uint64_t kSplit = kAlgorithms - 1;
uint64_t workspace_of(uint64_t algorithm, const EmulatedLayout& d) {
  const char* all = std::getenv("CUBLASLT_ON_CPU_WORKSPACE");
  const uint64_t parts = algorithm == kSplit ? uint64_t(2 * d.rows * d.columns) * sizeof(float) : 0;
  return std::max(parts, all ? uint64_t(std::atoll(all)) : 0);
}
bool is_proposed(uint64_t algorithm, const EmulatedLayout& d, const EmulatedPreference& p) {
  if (workspace_of(algorithm, d) > p.workspace) return false;
  return algorithm != kSplit ||
         (p.schemes & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE && !refuses("split"));
}

}  // namespace

const char* cublasLtGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_INVALID_VALUE      ? "CUBLAS_STATUS_INVALID_VALUE"
         : status == CUBLAS_STATUS_EXECUTION_FAILED ? "CUBLAS_STATUS_EXECUTION_FAILED"
                                                    : "CUBLAS_STATUS_NOT_SUPPORTED";
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* out) {
  static EmulatedLt one;
  *out = &one;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* out, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *out = new EmulatedMatmul{.compute = compute};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t m,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  void* to = nullptr;
  size_t size = 4;
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      to = &m->transa;
      break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      to = &m->transb;
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      to = &m->epilogue;
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      to = &m->bias;
      size = 8;
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      to = &m->aux;
      size = 8;
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      to = &m->aux_ld;
      size = 8;
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
      to = &m->aux_type;
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      to = &m->bias_type;
      break;
  }
  if (bytes != size) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* out, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
  if (ld < int64_t(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  *out = new EmulatedLayout{
      .type = type, .rows = int64_t(rows), .columns = int64_t(columns), .ld = ld};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t bytes) {
  const bool count = attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
  if (bytes != (count ? sizeof layout->batch : sizeof layout->next))
    return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(count ? static_cast<void*>(&layout->batch) : &layout->next, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* out) {
  *out = new EmulatedPreference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  if (bytes != (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? 8u : 4u))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
    std::memcpy(&preference->workspace, value, 8);
  else if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
    std::memcpy(&preference->schemes, value, 4);
  else
    std::memcpy(&preference->alignments[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
                value, 4);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t m,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* found) {
  *found = 0;
  int64_t k = m->transa == CUBLAS_OP_T ? a->rows : a->columns;
  int64_t rows = m->transa == CUBLAS_OP_T ? a->columns : a->rows,
          columns = m->transb == CUBLAS_OP_T ? b->rows : b->columns;
  if (k != (m->transb == CUBLAS_OP_T ? b->columns : b->rows) || rows != d->rows ||
      columns != d->columns || rows != c->rows || columns != c->columns || a->type != b->type ||
      c->type != d->type || a->batch != d->batch || b->batch != d->batch || c->batch != d->batch ||
      wanted < 1)
    return CUBLAS_STATUS_INVALID_VALUE;
  // In a batch, the vectors of epilogues would need strides.
  bool refused = d->batch > 1 && m->epilogue != CUBLASLT_EPILOGUE_DEFAULT;
  refused = refused || !has_places(*m);
  refused =
      refused || ((has_bias(m->epilogue) || has_sums(m->epilogue)) && m->bias_type != d->type);
  refused = refused || (has_sums(m->epilogue) && sums_are("none"));
  refused = refused || refuses_epilogue(m->epilogue);
  refused = refused || (d->batch > 1 && refuses("batch"));
  refused = refused || (m->compute == CUBLAS_COMPUTE_32F_FAST_TF32 && a->type != CUDA_R_32F);
  refused = refused || (has_aux(m->epilogue) && (m->aux_ld % 8 != 0 || m->aux_type != d->type));
  if (refused) return CUBLAS_STATUS_NOT_SUPPORTED;
  for (uint64_t i = 0; i < kAlgorithms && *found < wanted; ++i) {
    if (!is_proposed(i, *d, *preference)) continue;
    const uint64_t bytes = workspace_of(i, *d);
    results[(*found)++] = {
        .algo = {{kMark + i, packed(preference->alignments), bytes, 0, 0, 0, 0, 0xfeed}},
        .workspaceSize = bytes,
        .state = CUBLAS_STATUS_SUCCESS};
  }
  return *found > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}
size_t cublasLtGetVersion() { return 130100; }
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  *result = {
      .algo = *algorithm, .workspaceSize = algorithm->data[2], .state = CUBLAS_STATUS_SUCCESS};
  return is_ours(*algorithm) && algorithm->data[7] == 0xfeed ? CUBLAS_STATUS_SUCCESS
                                                             : CUBLAS_STATUS_INVALID_VALUE;
}

namespace {
// Returns a sum rounded towards zero, as tensor cores add.
float truncated(double sum) {
  const auto near = float(sum);
  return std::fabs(double(near)) > std::fabs(sum) ? std::nextafter(near, 0.0f) : near;
}
// Returns the sum of k products. Tensor cores add a few products exactly, then add this part to the
// sum.
double sum_of(const float* p, const float* q, int64_t k, uint64_t algorithm, bool narrow) {
  constexpr int64_t kExact = 16;
  double exact = 0;
  float sum = 0;
  if (narrow && cuda_on_cpu::perturbation != 0) {
    for (int64_t t = 0; t < k; ++t) {
      exact += double(p[t]) * double(q[t]);
      if (t % kExact != kExact - 1 && t != k - 1) continue;
      sum = truncated(double(sum) + exact);
      exact = 0;
    }
    return double(sum);
  }
  for (int64_t t = 0; t < k && algorithm == 0; ++t) exact += double(p[t]) * double(q[t]);
  for (int64_t t = 0; t < k && algorithm > 0; ++t) sum += p[t] * q[t];
  return algorithm == 0 ? exact : double(sum);
}

constexpr double kGelu = 0.7978845608028654, kCube = 0.044715;
double gelu_of(double x) {
  return 0.5 * x * (1 + cuda_on_cpu::fast_tanh(kGelu * (x + kCube * x * x * x)));
}
double gelu_derivative(double x) {
  const double th = cuda_on_cpu::fast_tanh(kGelu * (x + kCube * x * x * x));
  return 0.5 * (1 + th) + 0.5 * x * (1 - th * th) * kGelu * (1 + 3 * kCube * x * x);
}

// Reports what a product touches apart from its operands.
void touch_results(const EmulatedMatmul& m, float keep, const void* c, const EmulatedLayout& lc,
                   void* d, const EmulatedLayout& ld, void* workspace, size_t bytes) {
  using namespace cuda_on_cpu;
  if (keep != 0) reads(c, bytes_of(lc, lc.ld));
  if (has_bias(m.epilogue)) reads(m.bias, size_t(ld.rows) * (m.bias_type == CUDA_R_32F ? 4 : 2));
  if (has_sums(m.epilogue)) writes(m.bias, size_t(ld.rows) * 4);
  if (m.epilogue == CUBLASLT_EPILOGUE_DGELU)
    reads(m.aux, bytes_of(ld, m.aux_ld));
  else if (has_aux(m.epilogue))
    writes(m.aux, bytes_of(ld, m.aux_ld));
  writes(workspace, bytes);
  writes(d, bytes_of(ld, ld.ld));
}

void multiply(const EmulatedMatmul& m, float by, const void* a, const EmulatedLayout& la,
              const void* b, const EmulatedLayout& lb, float keep, const void* c,
              const EmulatedLayout& lc, void* d, const EmulatedLayout& ld, void* workspace,
              size_t bytes, uint64_t algorithm) {
  cuda_on_cpu::Access access;
  // other callers must not rely on the old contents
  const size_t used = std::max(std::min<size_t>(bytes, 4096), workspace_of(algorithm, ld));
  touch_results(m, keep, c, lc, d, ld, workspace, used);
  std::memset(workspace, 0xff, used);
  int64_t rows = ld.rows, columns = ld.columns, k = m.transa == CUBLAS_OP_T ? la.rows : la.columns;
  std::vector<float> left = columns_of(a, la, m.transa == CUBLAS_OP_N, rows, k, m.compute);
  std::vector<float> right = columns_of(b, lb, m.transb == CUBLAS_OP_T, columns, k, m.compute);
  const bool narrow = la.type != CUDA_R_32F || m.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  for (int64_t j = 0; j < columns; ++j)
    for (int64_t i = 0; i < rows; ++i) {
      const float *p = &left[size_t(i * k)], *q = &right[size_t(j * k)];
      double sum = 0;
      if (algorithm == kSplit) {
        float* parts = static_cast<float*>(workspace) + 2 * (j * rows + i);
        parts[0] = float(sum_of(p, q, k / 2, algorithm, narrow));
        parts[1] = float(sum_of(p + k / 2, q + k / 2, k - k / 2, algorithm, narrow));
        sum = double(parts[0] + parts[1]);
      } else {
        sum = sum_of(p, q, k, algorithm, narrow);
      }
      double x =
          by * sum + (keep != 0 ? double(keep) * double(read(c, i + j * lc.ld, lc.type)) : 0);
      if (has_bias(m.epilogue)) x += double(read(m.bias, i, m.bias_type));
      if (m.epilogue == CUBLASLT_EPILOGUE_DGELU) {
        x *= gelu_derivative(double(read(m.aux, i + j * m.aux_ld, m.aux_type)));
      } else if (has_aux(m.epilogue)) {
        write(m.aux, i + j * m.aux_ld, m.aux_type, float(x));
        x = gelu_of(x);
      }
      write(d, i + j * ld.ld, ld.type, float(x));
    }
  for (int64_t i = 0; i < rows && has_sums(m.epilogue); ++i) {
    double sum = 0;
    for (int64_t t = 0; t < k; ++t) sum += double(left[size_t(i * k + t)]);
    write(const_cast<void*>(m.bias), i, m.bias_type, float(sum));
  }
}
const void* nth(const void* first, const EmulatedLayout& l, int64_t i) {
  return static_cast<const char*>(first) + i * l.next * (l.type == CUDA_R_32F ? 4 : 2);
}
}  // namespace

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t m, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t la, const void* b,
                              cublasLtMatrixLayout_t lb, const void* beta, const void* c,
                              cublasLtMatrixLayout_t lc, void* d, cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t bytes,
                              cudaStream_t stream) {
  if (!is_ours(*algorithm) || !are_aligned({a, b, c, d}, algorithm->data[1]) || !has_places(*m) ||
      bytes < algorithm->data[2])
    return CUBLAS_STATUS_INVALID_VALUE;
  // The library starts a kernel, and reports an older error as its own.
  if (cuda_on_cpu::last_error() != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
  const uint64_t number = algorithm->data[0] - kMark;
  const char* fastest = std::getenv("CUBLASLT_ON_CPU_FASTEST");
  const double share =
      number == uint64_t(fastest ? std::atoi(fastest) : 0) ? 0.5 : 1 + 0.1 * double(number);
  float by = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  cuda_on_cpu::submit(stream, [=, m = *m, la = *la, lb = *lb, lc = *lc, ld = *ld] {
    for (int64_t i = 0; i < ld.batch; ++i)
      multiply(m, by, nth(a, la, i), la, nth(b, lb, i), lb, keep, nth(c, lc, i), lc,
               const_cast<void*>(nth(d, ld, i)), ld, workspace, bytes, number);
    // our own kernels report no time
    const double of_sums = has_sums(m.epilogue) && sums_are("fast") ? 0.5 : 1;
    cuda_on_cpu::spend(of_sums * share * 1e-9 * double(ld.rows * ld.columns * ld.batch));
  });
  return CUBLAS_STATUS_SUCCESS;
}
