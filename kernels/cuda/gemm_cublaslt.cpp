// Products on the GPU by cuBLASLt: bias, residual, GELU and its derivative go into the product's own kernel where the library
// has one for the shape, and into finish_gemm otherwise; sums as well, or ColumnSum makes them. The algorithm is the library's first
// proposal, or what was chosen (gemm_search.hpp).
//
// cuBLASLt thinks in columns: a row-major [m, n] is its column-major [n, m]. So it is asked for C^T = B^T A^T, with b as its
// first operand, and a bias over the n columns of c is its bias over rows. Sums over rows of b are those of its first operand over
// the common dimension (BGRADA), which it writes in c's type, f32. Its other epilogue with sums, of GELU's derivative, would
// write those in the type of the activations.
#include <cublasLt.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "device/cuda.hpp"
#include "device/cuda_library.hpp"
#include "device/gpu.hpp"
#include "device/memory.hpp"
#include "kernels/cuda/gemm_finish.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/gemm.hpp"
#include "kernels/gemm_search.hpp"

#define LT(function) LIBRARY_FUNCTION("libcublasLt.so.13", function)

namespace kernels {
namespace {

constexpr size_t kWorkspace = kGemmWorkspace;
constexpr int kProposals = 8;

cudaDataType_t type_of(DType type) {
  return type == DType::bf16 ? CUDA_R_16BF : type == DType::f16 ? CUDA_R_16F : CUDA_R_32F;
}

// The largest power of two up to 64 that divides an address: kernels are chosen by it. Activations lie at multiples of 64, and no
// more can be said of them on paper.
uint32_t alignment_of(const void* p) {
  uintptr_t address = reinterpret_cast<uintptr_t>(p) | 64;
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

using Key = decltype(Call().key());

void check_lt(cublasStatus_t status, const char* what, const Call& c) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  base::fail(base::Exit::mesh, "gemm [{}, {}] x [{}, {}] on the GPU: {}: {}", c.n, c.k, c.k, c.m, what,
             LT(cublasLtGetStatusName)(status));
}

cublasLtHandle_t handle(const Call& c) {
  static cublasLtHandle_t one = nullptr;
  if (!one) check_lt(LT(cublasLtCreate)(&one), "starting cuBLASLt", c);
  return one;
}

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

// On paper and in what tells calls apart, scratch lies at any aligned address.
void* const kSomeScratch = reinterpret_cast<void*>(4096);

// `scratch`: where sums go that are to be added to others, as the library only overwrites them.
Call fused_call(const Gemm& a, const Queue& queue, void* scratch = kSomeScratch) {
  int64_t ldc = a.leading_of_c();
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
  if (!a.sums.none()) {
    call.epilogue = CUBLASLT_EPILOGUE_BGRADA;
    call.bias = a.write == Write::accumulate ? scratch : a.sums.data;
  }
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
void set(cublasLtMatmulDesc_t matmul, cublasLtMatmulDescAttributes_t attribute, T value, const Call& c) {
  check_lt(LT(cublasLtMatmulDescSetAttribute)(matmul, attribute, &value, sizeof value), "describing it", c);
}
template <class T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, T value, const Call& c) {
  check_lt(LT(cublasLtMatmulPreferenceSetAttribute)(preference, attribute, &value, sizeof value), "describing it", c);
}

void point_epilogue(const Plan& plan, const Call& call) {
  if (call.bias) set<const void*>(plan.matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.bias, call);
  if (call.aux) set<void*>(plan.matmul, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, call.aux, call);
}

Plan describe(const Call& call) {
  Plan plan;
  check_lt(LT(cublasLtMatmulDescCreate)(&plan.matmul, call.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
           "describing it", call);
  set(plan.matmul, CUBLASLT_MATMUL_DESC_TRANSA, call.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N, call);
  set(plan.matmul, CUBLASLT_MATMUL_DESC_TRANSB, call.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N, call);
  set(plan.matmul, CUBLASLT_MATMUL_DESC_EPILOGUE, call.epilogue, call);
  if (call.bias) set(plan.matmul, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(call.d_type), call);
  if (call.aux) {
    set(plan.matmul, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, call.ld_aux, call);
    set(plan.matmul, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, type_of(call.d_type), call);
  }
  point_epilogue(plan, call);  // proposals look at their alignment
  auto layout = [&](cublasLtMatrixLayout_t* out, DType type, int64_t rows, int64_t columns, int64_t leading) {
    check_lt(LT(cublasLtMatrixLayoutCreate)(out, type_of(type), uint64_t(rows), uint64_t(columns), leading), "describing it", call);
  };
  layout(&plan.a, call.operands, call.trans_a ? call.k : call.m, call.trans_a ? call.m : call.k, call.lda);
  layout(&plan.b, call.operands, call.trans_b ? call.n : call.k, call.trans_b ? call.k : call.n, call.ldb);
  layout(&plan.c, call.c_type, call.m, call.n, call.ldc);
  layout(&plan.d, call.d_type, call.m, call.n, call.ldd);
  return plan;
}

// The library's, best first, by its own judgement, which is the same in every run. What an epilogue lacks comes as a status or as no
// proposal; of a plain product it is an error, which the caller tells.
std::vector<cublasLtMatmulAlgo_t> proposals(const Plan& plan, const Call& call, int most) {
  cublasLtMatmulPreference_t preference = nullptr;
  check_lt(LT(cublasLtMatmulPreferenceCreate)(&preference), "describing it", call);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace, call);
  // Not "in place": there the parts of a cut k are added in the order in which they come.
  // Nor in the type of a narrow result: products are summed in f32.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      uint32_t(call.d_type == DType::f32 ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE
                                         : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE),
      call);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(call.a), call);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(call.b), call);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(call.c), call);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(call.d), call);
  cublasLtMatmulHeuristicResult_t results[kProposals] = {};
  int count = 0;
  cublasStatus_t status = LT(cublasLtMatmulAlgoGetHeuristic)(handle(call), plan.matmul, plan.a, plan.b, plan.c, plan.d, preference,
                                                             most, results, &count);
  LT(cublasLtMatmulPreferenceDestroy)(preference);
  std::vector<cublasLtMatmulAlgo_t> out;
  for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; ++i)
    if (results[i].state == CUBLAS_STATUS_SUCCESS) out.push_back(results[i].algo);
  return out;
}

// By shape; kept to the end, because shapes are fixed for a run. Chosen: in the place of the first proposal. Prepared: on paper.
struct Shapes {
  std::map<Key, Plan> plans;
  std::map<Key, cublasLtMatmulAlgo_t> chosen;
  std::map<Key, Call> prepared;
};
Shapes& shapes() {
  static Shapes all;
  return all;
}

const Plan& plan_for(const Call& call) {
  auto [it, added] = shapes().plans.try_emplace(call.key());
  Plan& plan = it->second;
  if (!added) return plan;
  plan = describe(call);
  auto chosen = shapes().chosen.find(call.key());
  if (chosen != shapes().chosen.end()) {
    plan.algorithm = chosen->second, plan.found = true;
  } else if (std::vector<cublasLtMatmulAlgo_t> first = proposals(plan, call, 1); !first.empty()) {
    plan.algorithm = first[0], plan.found = true;
  }
  return plan;
}

void execute(const Call& call, const Plan& plan, const cublasLtMatmulAlgo_t& algorithm, void* workspace, Queue& queue) {
  point_epilogue(plan, call);
  const float one = 1;
  check_lt(LT(cublasLtMatmul)(handle(call), plan.matmul, &one, call.a, plan.a, call.b, plan.b, &call.beta, call.c, plan.c, call.d,
                              plan.d, &algorithm, workspace, kWorkspace, device::stream_of(queue)),
           "running it", call);
}

// The product alone, for finish_gemm to read.
Call product_call(const Gemm& a, void* workspace, const Queue& queue) {
  return plain_call(a, static_cast<char*>(workspace) + kWorkspace, DType::f32, a.n, queue);
}

bool is_empty(const Gemm& a) { return a.m == 0 || a.n == 0 || a.k == 0; }

void add_sums(const Gemm& a, void* more, Queue& queue) {
  if (a.write == Write::accumulate) run_cuda(Add{.y = a.sums, .a = a.sums, .b = device::view(static_cast<float*>(more), a.n)}, queue);
}

void run_with_sums(const Gemm& a, Queue& queue) {
  if (!is_empty(a)) {
    char* workspace = static_cast<char*>(queue.scratch(cuda_scratch(a)));
    const Call call = fused_call(a, queue, workspace + kWorkspace);
    if (const Plan& plan = plan_for(call); plan.found) {
      execute(call, plan, plan.algorithm, workspace, queue);
      return add_sums(a, call.bias, queue);
    }
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
  if (is_one_kernel(a)) {
    Call call = fused_call(a, queue);
    if (const Plan& plan = plan_for(call); plan.found)
      return execute(call, plan, plan.algorithm, queue.scratch(cuda_scratch(a)), queue);
  }
  // Also where the library lacks what it should have.
  void* workspace = queue.scratch(kWorkspace + size_t(a.m * a.n) * sizeof(float));
  Call call = product_call(a, workspace, queue);
  const Plan& plan = plan_for(call);
  if (!plan.found)
    base::fail(base::Exit::mesh, "gemm [{}, {}] x [{}, {}] of {}: cuBLASLt has no kernel for it", a.m, a.k, a.k, a.n,
               device::name_of(a.a.type));
  execute(call, plan, plan.algorithm, workspace, queue);
  finish_gemm(a, static_cast<float*>(call.d), queue);
}

// Both ways, where the library's answer is not known yet; what lies in no real memory is never read.
void prepare_cuda(const Gemm& a, const Queue& queue) {
  if (is_empty(a)) return;
  auto prepare = [](const Call& call) { shapes().prepared.try_emplace(call.key(), call); };
  if (is_one_kernel(a)) return prepare(fused_call(a, queue));
  prepare(product_call(a, kSomeScratch, queue));
}

bool sums_pay(const Gemm& a, const Queue& queue) { return !is_empty(a) && shapes().chosen.count(fused_call(a, queue).key()); }

// ---- the search

namespace {

// Bytes that the call reaches of each of its matrices and vectors.
struct Extents {
  size_t a, b, c, d, bias, aux;
  explicit Extents(const Call& x)
      : a(bytes(x.operands, x.lda, x.trans_a ? x.m : x.k)),
        b(bytes(x.operands, x.ldb, x.trans_b ? x.k : x.n)),
        c(bytes(x.c_type, x.ldc, x.n)),
        d(bytes(x.d_type, x.ldd, x.n)),
        bias(x.bias ? bytes(x.d_type, x.m, 1) : 0),
        aux(x.aux ? bytes(x.d_type, x.ld_aux, x.n) : 0) {}
  static size_t bytes(DType type, int64_t leading, int64_t columns) {
    return (size_t(leading * columns * device::size_of(type)) + 255) / 256 * 256;
  }
  size_t all() const { return a + b + c + d + bias + aux; }
};

Call placed(Call call, char* memory) {
  const Extents e(call);
  auto take = [&](size_t bytes) { return std::exchange(memory, memory + bytes); };
  const bool in_place = call.c == call.d;
  call.a = take(e.a), call.b = take(e.b), call.d = take(e.d), call.c = in_place ? call.d : take(e.c);
  if (call.bias) call.bias = take(e.bias);
  if (call.aux) call.aux = take(e.aux);
  return call;
}

class Timer {
 public:
  Timer() {
    device::check_cuda(cudaEventCreateWithFlags(&begin_, 0), "making an event");
    device::check_cuda(cudaEventCreateWithFlags(&end_, 0), "making an event");
  }
  ~Timer() { cudaEventDestroy(begin_), cudaEventDestroy(end_); }
  // Of one call: the least of several turns of some calls each.
  template <class Work>
  double seconds(Work work, Queue& queue) {
    constexpr int kTurns = 3, kCalls = 4;
    cudaStream_t stream = device::stream_of(queue);
    double least = 0;
    work();
    for (int turn = 0; turn < kTurns; ++turn) {
      device::check_cuda(cudaEventRecord(begin_, stream), "recording an event");
      for (int i = 0; i < kCalls; ++i) work();
      device::check_cuda(cudaEventRecord(end_, stream), "recording an event");
      queue.synchronize();
      float ms = 0;
      device::check_cuda(cudaEventElapsedTime(&ms, begin_, end_), "timing a product");
      const double s = double(ms) / 1e3 / kCalls;
      if (turn == 0 || s < least) least = s;
    }
    return least;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

std::string text_of(const Call& c) {
  return fmt::format("{}{}{}{} {}x{}x{} ld {} {} {} {} {} {} {} {} epilogue {} beta {} aligned {} {} {} {} {} {}",
                     c.fused ? "fused" : "plain", c.tf32 ? " tf32" : "",
                     c.trans_a ? " ta" : "", c.trans_b ? " tb" : "", c.m, c.n, c.k, c.lda, c.ldb, c.ldc, c.ldd, c.ld_aux,
                     device::name_of(c.operands), device::name_of(c.c_type), device::name_of(c.d_type), int(c.epilogue), c.beta,
                     alignment_of(c.a), alignment_of(c.b), alignment_of(c.c), alignment_of(c.d), alignment_of(c.bias),
                     alignment_of(c.aux));
}

std::string hex_of(const cublasLtMatmulAlgo_t& algorithm) {
  std::string out;
  for (uint64_t word : algorithm.data) out += fmt::format("{:016x}", word);
  return out;
}
bool from_hex(const std::string& text, cublasLtMatmulAlgo_t& algorithm) {
  constexpr size_t kDigits = 16, kWords = std::size(cublasLtMatmulAlgo_t{}.data);
  if (text.size() != kDigits * kWords) return false;
  for (size_t i = 0; i < kWords; ++i) {
    const char *begin = text.data() + i * kDigits, *end = begin + kDigits;
    uint64_t word = 0;
    if (auto [at, error] = std::from_chars(begin, end, word, 16); at != end || error != std::errc()) return false;
    algorithm.data[i] = word;
  }
  return true;
}

// "shape = algorithm" by line.
std::map<std::string, std::string> lines_of(const std::string& choices) {
  std::map<std::string, std::string> out;
  for (size_t at = 0; at < choices.size();) {
    const size_t end = std::min(choices.find('\n', at), choices.size());
    const std::string line = choices.substr(at, end - at);
    at = end + 1;
    if (size_t equals = line.find(" = "); equals != line.npos) out[line.substr(0, equals)] = line.substr(equals + 3);
  }
  return out;
}

// One that is faster by less than the noise of timing is no reason to leave the first.
constexpr double kWorth = 0.98;

struct Fastest {
  cublasLtMatmulAlgo_t algorithm;
  double first_s, least_s;
  bool changed;
};
Fastest fastest(const Plan& plan, const Call& call, const std::vector<cublasLtMatmulAlgo_t>& proposed, void* workspace, Queue& queue) {
  Timer timer;
  double least = 0, first = 0;
  size_t best = 0;
  for (size_t i = 0; i < proposed.size(); ++i) {
    const double s = timer.seconds([&] { execute(call, plan, proposed[i], workspace, queue); }, queue);
    if (i == 0) first = least = s;
    if (s < least && s < kWorth * first) least = s, best = i;
  }
  return {proposed[best], first, least, best != 0};
}

// What is chosen where a product with sums is slower than one without and an op for the sums.
const std::string kApart = "apart";

bool has_sums(const Call& call) { return call.epilogue == CUBLASLT_EPILOGUE_BGRADA; }

Call without_sums(Call call) {
  call.epilogue = CUBLASLT_EPILOGUE_DEFAULT, call.bias = nullptr;
  return call;
}

// Whether a call with sums, at `real` places, is faster than one without, whose algorithm is `plain`, and an op for the sums.
bool sums_pay(const cublasLtMatmulAlgo_t& algorithm, const Plan& plan, const Call& real, const cublasLtMatmulAlgo_t& plain,
              void* workspace, Queue& queue) {
  const View out = device::view(static_cast<float*>(real.bias), real.m), x{real.a, real.operands, real.k * real.m};
  const Call product = without_sums(real);
  const Plan alone = describe(product);
  auto apart = [&] {
    execute(product, alone, plain, workspace, queue);
    run_cuda(ColumnSum{.out = out, .x = x, .m = real.k, .n = real.m}, queue);
  };
  auto together = [&] {
    execute(real, plan, algorithm, workspace, queue);
    if (real.beta != 0) run_cuda(Add{.y = out, .a = out, .b = out}, queue);  // as it is added to others
  };
  return Timer().seconds(together, queue) < kWorth * Timer().seconds(apart, queue);
}

// The algorithm that a line chooses for a call, if it is one for this GPU.
bool is_choice(const std::string& line, const Plan& plan, const Call& call, cublasLtMatmulAlgo_t& algorithm) {
  cublasLtMatmulHeuristicResult_t result{};
  return from_hex(line, algorithm) &&
         LT(cublasLtMatmulAlgoCheck)(handle(call), plan.matmul, plan.a, plan.b, plan.c, plan.d, &algorithm, &result) ==
             CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= kWorkspace;
}

}  // namespace

std::string gemm_platform() {
  return fmt::format("{}, cuBLASLt {}", device::gpu_name(), LT(cublasLtGetVersion)());
}

GemmSearch search_gemms(const std::string& known, Queue& queue) {
  std::map<std::string, std::string> lines = lines_of(known);
  GemmSearch out;
  size_t most = 0;
  for (const auto& [key, call] : shapes().prepared) most = std::max(most, Extents(call).all());
  device::Ledger ledger;
  device::Buffer memory(device::Kind::cuda, ledger, "algorithm search", int64_t(most));
  // Small numbers: of zeros, some GPUs compute faster than they ever will.
  device::check_cuda(cudaMemsetAsync(memory.data(), 0x3c, most, device::stream_of(queue)), "filling memory");
  std::set<std::string> here;
  auto search = [&](const Call& call, size_t scratch) {
    const std::string shape = text_of(call);
    here.insert(shape), ++out.shapes;
    if (lines.count(shape)) return;
    const Plan plan = describe(call);
    const std::vector<cublasLtMatmulAlgo_t> proposed = proposals(plan, call, kProposals);
    if (proposed.empty()) return;  // the caller of the product tells, or goes another way
    ++out.timed;
    const Call real = placed(call, static_cast<char*>(memory.data()));
    void* workspace = queue.scratch(scratch);
    const Fastest found = fastest(plan, real, proposed, workspace, queue);
    lines[shape] = hex_of(found.algorithm), out.changed += found.changed;
    if (!has_sums(call)) {
      out.first_s += found.first_s, out.chosen_s += found.least_s;
      return;
    }
    ++out.sums;
    const Call alone = without_sums(call);
    cublasLtMatmulAlgo_t plain{};
    // A damaged choice of before is told by who takes it.
    auto line = lines.find(text_of(alone));
    const bool known_alone = line != lines.end() && is_choice(line->second, describe(alone), alone, plain);
    if (known_alone && sums_pay(found.algorithm, plan, real, plain, workspace, queue))
      ++out.together;
    else
      lines[shape] = kApart;
  };
  for (const auto& [key, call] : shapes().prepared)
    if (!has_sums(call)) search(call, kWorkspace);
  // These after those without, beside which they are timed.
  for (const auto& [key, call] : shapes().prepared)
    if (has_sums(call)) search(call, std::max(kWorkspace, cuda_scratch(ColumnSum{.out = {}, .x = {}, .m = call.k, .n = call.m})));
  for (const auto& [shape, algorithm] : lines) out.kept += !here.count(shape);
  for (const auto& [shape, algorithm] : lines) out.choices += shape + " = " + algorithm + "\n";
  return out;
}

void use_gemm_choices(const std::string& choices) {
  const std::map<std::string, std::string> lines = lines_of(choices);
  shapes().chosen.clear(), shapes().plans.clear();
  for (const auto& [key, call] : shapes().prepared) {
    auto line = lines.find(text_of(call));
    if (line == lines.end() || line->second == kApart) continue;
    cublasLtMatmulAlgo_t algorithm{};
    if (!is_choice(line->second, describe(call), call, algorithm))
      base::fail(base::Exit::mesh, "the algorithm chosen for the product {} is not for this GPU ({}): choose anew by removing the file "
                 "gemm_search.txt of the run, or without run.gemm_search", line->first, gemm_platform());
    shapes().chosen[key] = algorithm;
  }
}

}  // namespace kernels
