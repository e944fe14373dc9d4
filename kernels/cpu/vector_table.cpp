#include "kernels/cpu/vector_table.hpp"

#include <atomic>

#include "kernels/gemm.hpp"

namespace kernels {
namespace {
std::atomic<const VectorTable*> g_forced{nullptr};  // only tests set it
}  // namespace

bool cpu_has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

bool cpu_has_avx512_bf16() { return cpu_has_avx512() && __builtin_cpu_supports("avx512bf16"); }

const VectorTable& vector_table() {
  static const VectorTable* const widest = cpu_has_avx512() ? &kAvx512Table : &kAvx2Table;
  static const bool has_bf16 = cpu_has_avx512_bf16();
  const VectorTable* forced = g_forced.load(std::memory_order_relaxed);
  return forced ? *forced : has_bf16 && bf16_is_native() ? kAvx512Bf16Table : *widest;
}

void force_vector_table(const VectorTable* table) { g_forced = table; }

}  // namespace kernels
