// SPDX-License-Identifier: Apache-2.0
// Detection of instruction sets, and the choice of vector loops.
#include "kernels/cpu/instructions.hpp"

#include <algorithm>
#include <atomic>
#include <dnnl.hpp>
#include <vector>

#include "base/elementary.hpp"
#include "base/error.hpp"
#include "base/names.hpp"
#include "base/text.hpp"
#include "kernels/cpu/vector_table.hpp"
#include "kernels/gemm.hpp"
#include "kernels/instruction_choice.hpp"
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

// choose_instructions
std::atomic<Instructions> widest{Instructions::automatic};
std::atomic<bool> portable{false};

struct Row {
  Instructions instructions;
  const VectorTable* table;
};

// The tables that this CPU runs, the widest last.
#ifdef __x86_64__
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
std::vector<Row> rows_of_cpu() {
  std::vector<Row> out{{Instructions::avx2, &kAvx2Table}};
  if (has_avx512()) out.push_back({Instructions::avx512, &kAvx512Table});
  if (has_avx512() && __builtin_cpu_supports("avx512bf16"))
    out.push_back({Instructions::automatic, &kAvx512Bf16Table});
  return out;
}
std::vector<Row> portable_rows_of_cpu() {
  std::vector<Row> out{{Instructions::generic, &kGenericWideTable},
                       {Instructions::avx2, &kAvx2WideTable}};
  if (has_avx512()) out.push_back({Instructions::avx512, &kAvx512PortableTable});
  return out;
}
#else
std::vector<Row> rows_of_cpu() { return {{Instructions::generic, &kGenericTable}}; }
std::vector<Row> portable_rows_of_cpu() { return {{Instructions::generic, &kGenericWideTable}}; }
#endif

const std::vector<Row>& rows(bool portable_ones) {
  static const std::vector<Row> all = rows_of_cpu(), alike = portable_rows_of_cpu();
  return portable_ones ? alike : all;
}

std::vector<const VectorTable*> tables_of(const std::vector<Row>& rows) {
  std::vector<const VectorTable*> out;
  for (const Row& row : rows) out.push_back(row.table);
  return out;
}

// Returns the table of these instructions; null: this CPU or program has none.
const VectorTable* table_of(Instructions instructions, bool portable_ones) {
  const std::vector<Row>& all = rows(portable_ones);
  if (instructions == Instructions::automatic) return all.back().table;
  auto found = std::find_if(all.begin(), all.end(),
                            [&](const Row& row) { return row.instructions == instructions; });
  return found == all.end() ? nullptr : found->table;
}

// oneDNN takes a limit only before it is asked for anything else.
void limit_onednn(Instructions chosen) {
  if (chosen != Instructions::avx2 && chosen != Instructions::avx512) return;
  const auto most = chosen == Instructions::avx2 ? dnnl::cpu_isa::avx2 : dnnl::cpu_isa::avx512_core;
  if (dnnl::set_max_cpu_isa(most) != dnnl::status::success)
    base::fail(base::Exit::internal,
               "run.cpu: oneDNN was in use before its instructions could be limited; leave the key "
               "out, and set ONEDNN_MAX_CPU_ISA={} in the environment",
               chosen == Instructions::avx2 ? "AVX2" : "AVX512_CORE");
}

}  // namespace

const std::vector<const VectorTable*>& vector_tables() {
  static const std::vector<const VectorTable*> all = tables_of(rows(false));
  return all;
}
const std::vector<const VectorTable*>& portable_vector_tables() {
  static const std::vector<const VectorTable*> all = tables_of(rows(true));
  return all;
}

void choose_instructions(Instructions chosen, bool portable_bits) {
  if (!table_of(chosen, portable_bits)) {
    std::vector<std::string> known{"auto"};
    for (const Row& row : rows(portable_bits))
      if (row.instructions != Instructions::automatic)
        known.push_back(base::name_of(kInstructionsNames, row.instructions));
    base::fail(base::Exit::config, "run.cpu = \"{}\": this CPU and program have {}{}",
               base::name_of(kInstructionsNames, chosen), base::join(known, ", "),
               chosen == Instructions::generic
                   ? "; determinism.level = \"anywhere\" also has generic"
                   : "");
  }
  if (!portable_bits && chosen != widest) limit_onednn(chosen);
  widest = chosen;
  portable = portable_bits;
  base::math::use_own(portable_bits);
}
bool bits_are_portable() { return portable.load(std::memory_order_relaxed); }

bool onednn_has_avx512() { return onednn_has(dnnl::cpu_isa::avx512_core); }
bool onednn_has_amx() { return onednn_has(dnnl::cpu_isa::avx512_core_amx); }

// With AVX-512 alone oneDNN also makes bf16 primitives. They convert inside, slower than f32 ones.
bool bf16_is_native() {
  return onednn_has(dnnl::cpu_isa::avx512_core_bf16) && !bf16_is_emulated && !bits_are_portable();
}

const VectorTable& vector_table() {
  if (const VectorTable* forced = forced_table.load(std::memory_order_relaxed)) return *forced;
  const Instructions chosen = widest.load(std::memory_order_relaxed);
  if (bits_are_portable() || chosen != Instructions::automatic)
    return *table_of(chosen, bits_are_portable());
  static const VectorTable *const last = vector_tables().back(), *const without_pairs = [] {
    const auto& all = vector_tables();
    return *std::find_if(all.rbegin(), all.rend(), [](auto* t) { return !t->pairs; });
  }();
  return bf16_is_native() ? *last : *without_pairs;
}

void seams::force_bf16_emulation(bool forced) { bf16_is_emulated = forced; }
void seams::force_vector_table(const VectorTable* table) { forced_table = table; }

}  // namespace kernels
