// SPDX-License-Identifier: Apache-2.0
// The search for cuBLASLt's fastest algorithm of each product (gemm_search.hpp).
#include <algorithm>
#include <charconv>
#include <set>
#include <string>
#include <utility>

#include "base/span.hpp"
#include "device/cuda.hpp"
#include "device/gpu.hpp"
#include "device/memory.hpp"
#include "kernels/cuda/matmul_cublaslt.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/gemm_search.hpp"

namespace kernels {
using namespace cublaslt;
namespace {

// Bytes that the call accesses in each of its matrices and vectors.
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

// Returns the call with all its matrices and vectors in `memory`.
Call placed(Call call, char* memory) {
  const Extents e(call);
  auto take = [&](size_t bytes) { return std::exchange(memory, memory + bytes); };
  const bool in_place = call.c == call.d;
  call.a = take(e.a);
  call.b = take(e.b);
  call.d = take(e.d);
  call.c = in_place ? call.d : take(e.c);
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
  ~Timer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  // Returns the seconds of one call: the least of several turns of a few calls each.
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
    if (auto [at, error] = std::from_chars(begin, end, word, 16); at != end || error != std::errc())
      return false;
    algorithm.data[i] = word;
  }
  return true;
}

// Splits choices into lines "shape = algorithm".
std::map<std::string, std::string> lines_of(const std::string& choices) {
  std::map<std::string, std::string> out;
  for (size_t at = 0; at < choices.size();) {
    const size_t end = std::min(choices.find('\n', at), choices.size());
    const std::string line = choices.substr(at, end - at);
    at = end + 1;
    if (size_t equals = line.find(" = "); equals != line.npos)
      out[line.substr(0, equals)] = line.substr(equals + 3);
  }
  return out;
}

// An algorithm is chosen only if its time is below this share of the first proposal's. Smaller
// gains are noise of timing.
constexpr double kWorth = 0.98;

struct Fastest {
  cublasLtMatmulAlgo_t algorithm;
  double first_s, least_s;
  bool changed;
};
Fastest fastest(const Matmul& matmul, const Call& call,
                const std::vector<cublasLtMatmulAlgo_t>& proposed, void* workspace, Queue& queue) {
  Timer timer;
  double least = 0, first = 0;
  size_t best = 0;
  for (size_t i = 0; i < proposed.size(); ++i) {
    const double s =
        timer.seconds([&] { execute(call, matmul, proposed[i], workspace, queue); }, queue);
    if (i == 0) first = least = s;
    if (s < least && s < kWorth * first) {
      least = s;
      best = i;
    }
  }
  return {proposed[best], first, least, best != 0};
}

// Written instead of an algorithm if a product with sums is slower than two ops: a product without
// sums and a ColumnSum.
const std::string kApart = "apart";

// True if `real`, a call with sums, is faster than two ops: the call without sums by algorithm
// `plain`, and a ColumnSum.
bool sums_pay(const cublasLtMatmulAlgo_t& algorithm, const Matmul& matmul, const Call& real,
              const cublasLtMatmulAlgo_t& plain, void* workspace, Queue& queue) {
  const View out = device::view(static_cast<float*>(real.bias), real.m),
             x{real.a, real.operands, real.k * real.m};
  const Call product = without_sums(real);
  const Matmul alone = describe(product);
  auto apart = [&] {
    execute(product, alone, plain, workspace, queue);
    run_cuda(ColumnSum{.out = out, .x = x, .m = real.k, .n = real.m}, queue);
  };
  auto together = [&] {
    execute(real, matmul, algorithm, workspace, queue);
    // Sums to accumulate need another op, which adds them.
    if (real.beta != 0) run_cuda(Add{.y = out, .a = out, .b = out}, queue);
  };
  return Timer().seconds(together, queue) < kWorth * Timer().seconds(apart, queue);
}

// True if the line names an algorithm for the call that this GPU can run. `algorithm` receives it.
bool is_choice(const std::string& line, const Matmul& matmul, const Call& call,
               cublasLtMatmulAlgo_t& algorithm) {
  cublasLtMatmulHeuristicResult_t result{};
  return from_hex(line, algorithm) &&
         LT(cublasLtMatmulAlgoCheck)(handle(call), matmul.description, matmul.a, matmul.b, matmul.c,
                                     matmul.d, &algorithm, &result) == CUBLAS_STATUS_SUCCESS &&
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
  // Memory is filled with small numbers, because some GPUs are faster on zeros.
  device::check_cuda(cudaMemsetAsync(memory.data(), 0x3c, most, device::stream_of(queue)),
                     "filling memory");
  std::set<std::string> here;
  auto search = [&](const Call& call, size_t scratch) {
    const std::string shape = text_of(call);
    here.insert(shape);
    ++out.shapes;
    if (lines.count(shape)) return;
    const base::Span span("time a product", out.shapes);
    const Matmul matmul = describe(call);
    const std::vector<cublasLtMatmulAlgo_t> proposed = proposals(matmul, call, kProposals);
    if (proposed.empty()) return;  // run_cuda reports an error, or runs the product in another way
    ++out.timed;
    const Call real = placed(call, static_cast<char*>(memory.data()));
    void* workspace = queue.scratch(scratch);
    const Fastest found = fastest(matmul, real, proposed, workspace, queue);
    lines[shape] = hex_of(found.algorithm);
    out.changed += found.changed;
    if (!has_sums(call)) {
      out.first_s += found.first_s;
      out.chosen_s += found.least_s;
      return;
    }
    ++out.sums;
    const Call alone = without_sums(call);
    cublasLtMatmulAlgo_t plain{};
    // use_gemm_choices reports a damaged earlier choice.
    auto line = lines.find(text_of(alone));
    const bool known_alone =
        line != lines.end() && is_choice(line->second, describe(alone), alone, plain);
    if (known_alone && sums_pay(found.algorithm, matmul, real, plain, workspace, queue))
      ++out.together;
    else
      lines[shape] = kApart;
  };
  for (const auto& [key, call] : shapes().prepared)
    if (!has_sums(call)) search(call, kWorkspace);
  // Shapes with sums come second: their times are compared with those of the same shapes without.
  for (const auto& [key, call] : shapes().prepared)
    if (has_sums(call))
      search(call, std::max(kWorkspace,
                            cuda_scratch(ColumnSum{.out = {}, .x = {}, .m = call.k, .n = call.m})));
  for (const auto& [shape, algorithm] : lines) out.kept += !here.count(shape);
  for (const auto& [shape, algorithm] : lines) out.choices += shape + " = " + algorithm + "\n";
  return out;
}

void use_gemm_choices(const std::string& choices) {
  const std::map<std::string, std::string> lines = lines_of(choices);
  shapes().chosen.clear();
  shapes().matmuls.clear();
  for (const auto& [key, call] : shapes().prepared) {
    auto line = lines.find(text_of(call));
    if (line == lines.end() || line->second == kApart) continue;
    cublasLtMatmulAlgo_t algorithm{};
    if (!is_choice(line->second, describe(call), call, algorithm))
      base::fail(
          base::Exit::mesh,
          "the algorithm chosen for the product {} is not for this GPU ({}): remove "
          "gemm_search.txt from the run directory to search again, or leave out run.gemm_search",
          line->first, gemm_platform());
    shapes().chosen[key] = algorithm;
  }
}

}  // namespace kernels
