// SPDX-License-Identifier: Apache-2.0
// Detection of instruction sets, and the choice of vector loops.
#include "kernels/cpu/instructions.hpp"

#include <algorithm>
#include <atomic>
#include <dnnl.hpp>
#include <vector>

#include "kernels/cpu/vector_table.hpp"
#include "kernels/gemm.hpp"
#include "kernels/testing.hpp"

namespace kernels {
namespace {

// True if oneDNN may use this instruction set. An isa has a bit for each set that it includes.
bool onednn_has(dnnl::cpu_isa isa) {
  static const auto available = unsigned(dnnl::get_effective_cpu_isa());
  return (available & unsigned(isa)) == unsigned(isa);
}

// Choices of tests (testing.hpp), which override the detection.
std::atomic<bool> bf16_is_emulated{false};
std::atomic<const VectorTable*> forced_table{nullptr};

std::atomic<bool> loops_are_portable{false};

#ifdef __x86_64__
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
std::vector<const VectorTable*> tables_of_cpu() {
  std::vector<const VectorTable*> out{&kAvx2Table};
  if (has_avx512()) out.push_back(&kAvx512Table);
  if (has_avx512() && __builtin_cpu_supports("avx512bf16")) out.push_back(&kAvx512Bf16Table);
  return out;
}
std::vector<const VectorTable*> portable_tables_of_cpu() {
  std::vector<const VectorTable*> out{&kAvx2WideTable};
  if (has_avx512()) out.push_back(&kAvx512PortableTable);
  return out;
}
#else
std::vector<const VectorTable*> tables_of_cpu() { return {&kGenericTable}; }
std::vector<const VectorTable*> portable_tables_of_cpu() { return {&kGenericWideTable}; }
#endif

}  // namespace

const std::vector<const VectorTable*>& vector_tables() {
  static const std::vector<const VectorTable*> all = tables_of_cpu();
  return all;
}
const std::vector<const VectorTable*>& portable_vector_tables() {
  static const std::vector<const VectorTable*> all = portable_tables_of_cpu();
  return all;
}
void use_portable_loops(bool portable) { loops_are_portable = portable; }

bool onednn_has_avx512() { return onednn_has(dnnl::cpu_isa::avx512_core); }
bool onednn_has_amx() { return onednn_has(dnnl::cpu_isa::avx512_core_amx); }

// With AVX-512 alone oneDNN also makes bf16 primitives. They convert inside, slower than f32 ones.
bool bf16_is_native() {
  return onednn_has(dnnl::cpu_isa::avx512_core_bf16) && !bf16_is_emulated && !loops_are_portable;
}

const VectorTable& vector_table() {
  const VectorTable* forced = forced_table.load(std::memory_order_relaxed);
  if (forced) return *forced;
  if (loops_are_portable.load(std::memory_order_relaxed)) return *portable_vector_tables().back();
  static const VectorTable *const widest = vector_tables().back(), *const without_pairs = [] {
    const auto& all = vector_tables();
    return *std::find_if(all.rbegin(), all.rend(), [](auto* t) { return !t->pairs; });
  }();
  return bf16_is_native() ? *widest : *without_pairs;
}

void seams::force_bf16_emulation(bool forced) { bf16_is_emulated = forced; }
void seams::force_vector_table(const VectorTable* table) { forced_table = table; }

}  // namespace kernels
