// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/instructions.hpp"

#include <atomic>
#include <dnnl.hpp>

#include "kernels/cpu/vector_table.hpp"
#include "kernels/gemm.hpp"
#include "kernels/testing.hpp"

namespace kernels {
namespace {

bool onednn_has(dnnl::cpu_isa isa) {  // each bit is an instruction set that is included
  static const auto here = unsigned(dnnl::get_effective_cpu_isa());
  return (here & unsigned(isa)) == unsigned(isa);
}

// Choices of tests (testing.hpp) in the place of the CPU's.
std::atomic<bool> bf16_is_emulated{false};
std::atomic<const VectorTable*> forced_table{nullptr};

}  // namespace

bool cpu_has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
bool cpu_has_avx512_bf16() { return cpu_has_avx512() && __builtin_cpu_supports("avx512bf16"); }
bool onednn_has_avx512() { return onednn_has(dnnl::cpu_isa::avx512_core); }

// With AVX-512 alone oneDNN makes bf16 primitives too, and converts inside: that is slower than
// f32.
bool bf16_is_native() { return onednn_has(dnnl::cpu_isa::avx512_core_bf16) && !bf16_is_emulated; }

const VectorTable& vector_table() {
  static const VectorTable* const widest = cpu_has_avx512() ? &kAvx512Table : &kAvx2Table;
  static const bool has_bf16 = cpu_has_avx512_bf16();
  const VectorTable* forced = forced_table.load(std::memory_order_relaxed);
  return forced ? *forced : has_bf16 && bf16_is_native() ? kAvx512Bf16Table : *widest;
}

void seams::force_bf16_emulation(bool forced) { bf16_is_emulated = forced; }
void seams::force_vector_table(const VectorTable* table) { forced_table = table; }

}  // namespace kernels
