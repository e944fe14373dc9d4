// SPDX-License-Identifier: Apache-2.0
// Matrix products with the same bits on every CPU.
#include <map>

#include "base/clock.hpp"
#include "kernels/cpu/gemm_operands.hpp"
#include "kernels/cpu/gemm_plan.hpp"
#include "kernels/cpu/instructions.hpp"
#include "kernels/cpu/portable.hpp"
#include "kernels/cpu/portable_product.hpp"

namespace kernels {
namespace {

// T: float, or bf16 as uint16_t.
template <class T>
class GemmPanels : public PortableOperands {
 public:
  GemmPanels(const Gemm& a, const GemmOperands& p, const VectorTable& table,
             const ActivationLoops<T>& loops)
      : a_(a), p_(p), table_(table), loops_(loops) {}

  OperandRows rows(const OperandPart& part, float* copy) const override {
    const T* a = reinterpret_cast<const T*>(p_.a);
    const int64_t lda = a_.leading_of_a();
    if (a_.trans_a) {  // copied, because each k would touch another page
      for (int64_t k = 0; k < part.length; ++k)
        copy_floats(copy + k * part.count, a + (part.begin + k) * lda + part.first, part.count,
                    table_);
      return {copy, 1, part.count};
    }
    a += part.first * lda + part.begin;
    if constexpr (sizeof(T) == sizeof(float)) return {a, lda, 1};
    for (int64_t r = 0; r < part.count; ++r)
      copy_floats(copy + r * kChain, a + r * lda, part.length, table_);
    return {copy, kChain, 1};
  }

  void pack_columns(float* panels, int64_t width, const OperandPart& part) const override {
    const T* b = reinterpret_cast<const T*>(p_.b);
    const int64_t ldb = a_.leading_of_b();
    const T* at[kChain];
    if (!a_.trans_b) {
      for (int64_t k = 0; k < part.length; ++k) at[k] = b + (part.begin + k) * ldb + part.first;
      return loops_.pack_columns({panels, at, width, part.count, part.length});
    }
    static const T zeros[kChain] = {};
    for (int64_t first = 0; first < part.count; first += width) {
      for (int64_t i = 0; i < width; ++i)
        at[i] = first + i < part.count ? b + (part.first + first + i) * ldb + part.begin : zeros;
      loops_.pack_lines({panels + first * part.length, at, width, part.length, width});
    }
  }
  const float* columns(const OperandPart& part, int64_t& step) const override {
    step = a_.leading_of_b();
    if constexpr (sizeof(T) == sizeof(float))
      if (!a_.trans_b) return reinterpret_cast<const float*>(p_.b) + part.begin * step + part.first;
    return nullptr;
  }

  void finish(const ProductBlock& b, float* sums, int64_t stride) const override {
    const bool narrow = a_.c.type == DType::bf16;
    for (int64_t r = 0; r < b.rows; ++r) {
      float* row = sums + r * stride;
      const int64_t packed = (b.row + r) * a_.n + b.column;
      if (p_.bias)
        for (int64_t j = 0; j < b.columns; ++j) row[j] += p_.bias[b.column + j];
      if (p_.residual)
        for (int64_t j = 0; j < b.columns; ++j) row[j] += p_.residual[packed + j];
      if (narrow) {
        uint16_t* c =
            reinterpret_cast<uint16_t*>(p_.c) + (b.row + r) * a_.leading_of_c() + b.column;
        put_bf16(c, row, b.columns, a_.write == Write::accumulate, table_);
        activate(c, table_.bf16, packed, b.columns);
      } else {
        activate(row, table_.f32, packed, b.columns);
      }
    }
  }

 private:
  template <class C>
  void activate(C* c, const ActivationLoops<C>& loops, int64_t packed, int64_t columns) const {
    if (p_.gelu) loops.gelu_forward(reinterpret_cast<C*>(p_.gelu) + packed, c, columns);
    if (p_.gelu_of)
      loops.gelu_backward(c, c, reinterpret_cast<const C*>(p_.gelu_of) + packed, columns);
  }

  const Gemm& a_;
  const GemmOperands& p_;
  const VectorTable& table_;
  const ActivationLoops<T>& loops_;
};

struct Uses {
  int64_t calls = 0;
  double seconds = 0;
};
thread_local std::map<GemmKey, Uses> portable_uses;

}  // namespace

std::vector<GemmUse> portable_gemm_uses() {
  std::vector<GemmUse> out;
  for (const auto& [key, uses] : portable_uses)
    if (uses.calls) out.push_back(use_of(key, uses.calls, uses.seconds));
  return out;
}
void reset_portable_gemm_uses() {
  for (auto& [key, uses] : portable_uses) uses = {};
}

bool portable_is_faster(const Gemm& a, const Queue& queue) {
#ifdef __x86_64__
  constexpr bool measured = true;
#else
  constexpr bool measured = false;
#endif
  constexpr int64_t kPage = 1024;  // floats
  return measured && queue.fixed_order() && !onednn_has_avx512() && !a.trans_b &&
         a.leading_of_b() % kPage == 0 && (a.m > 1 || queue.rows_alike());
}

void run_portable(const Gemm& a, Queue& queue) {
  const double begin = base::now_s();
  const VectorTable& table = vector_table();
  const GemmOperands p = operands_of(a, 0, queue);
  const bool narrow = a.c.type == DType::bf16;
  table.with(a.a.type, [&](const auto& loops, auto element) {
    const GemmPanels<decltype(element)> panels(a, p, table, loops);
    run_portable({.m = a.m,
                  .n = a.n,
                  .k = a.k,
                  .c = narrow ? nullptr : a.c.f32(),
                  .ldc = a.leading_of_c(),
                  .add = a.write == Write::accumulate},
                 panels, table, queue);
  });
  Uses& uses = portable_uses[key_of(a, queue)];
  ++uses.calls;
  uses.seconds += base::now_s() - begin;
}

}  // namespace kernels
