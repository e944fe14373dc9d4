// SPDX-License-Identifier: Apache-2.0
// Runs several products by oneDNN, row block by row block, so that rows they share stay in cache.
#include <omp.h>

#include <algorithm>

#include "base/clock.hpp"
#include "kernels/cpu/gemm_operands.hpp"
#include "kernels/cpu/gemm_plan.hpp"
#include "kernels/cpu/onednn_versions.hpp"
#include "kernels/cpu/portable.hpp"

namespace kernels {

bool run_cpu_by_rows(std::span<const Gemm> products, Queue& queue) {
  CHECK(products.size() <= kMostByRows, "gemm: run_by_rows got {} products, at most {} are allowed",
        products.size(), kMostByRows);
  if (bits_are_portable()) return false;
  GemmPlan* plan[kMostByRows] = {};
  GemmOperands operands[kMostByRows];
  size_t scratch_bytes = 0, packed_bytes = 0;
  for (size_t i = 0; i < products.size(); ++i) {
    const Gemm& a = products[i];
    check(a);
    if (a.m == 0 || a.n == 0 || a.k == 0 || a.trans_a || a.a.type == DType::f16 || !a.sums.none())
      return false;
    const GemmKey key = key_of(a, queue);
    // Widening or copying before the blocks would need scratch for all products at once.
    const bool alone = (a.a.type == DType::bf16 && !key.narrow) ||
                       (key.residual && key.ldc != a.n) || portable_is_faster(a, queue) ||
                       (misreads_columns() && SpreadColumns(a).any());
    if (alone || !runs_in_blocks(key)) return false;
    plan[i] = &plan_for(key);
    operands[i] = operands_of(a, i, queue);
    if (!plan[i]->by_rows() || plan[i]->row_blocks() != plan[0]->row_blocks()) return false;
    scratch_bytes = std::max(scratch_bytes, plan[i]->scratch_bytes());
    packed_bytes += plan[i]->packed_bytes();
  }
  const double begin = base::now_s();
  const int workers = plan[0]->workers(), count = int(products.size());
  const int64_t blocks = int64_t(plan[0]->row_blocks().size());
  const size_t workers_bytes = size_t(workers) * scratch_bytes + kScratchLine;
  char* const scratch = static_cast<char*>(queue.scratch(workers_bytes + packed_bytes));
  char* packed = scratch + workers_bytes;
  for (int i = 0; i < count; ++i) {
    plan[i]->pack_b(operands[i], packed);
    packed += plan[i]->packed_bytes();
  }
  double seconds[kMostByRows] = {};
  int status[kMostByRows] = {};
  {
    ThreadScope scope(1);  // the workers inherit it
#pragma omp parallel for num_threads(workers) schedule(dynamic, 1) reduction(+ : seconds) reduction(max : status)
    for (int64_t block = 0; block < blocks; ++block) {
      const int worker = omp_get_thread_num();
      double before = base::now_s();
      for (int i = 0; i < count; ++i) {
        const int s = plan[i]->run_block(operands[i], block, 0, worker,
                                         scratch + size_t(worker) * scratch_bytes);
        status[i] = std::max(status[i], s);
        const double now = base::now_s();
        seconds[i] += now - before;
        before = now;
      }
    }
  }
  double busy = 0;
  for (double s : seconds) busy += s;
  const double wall = base::now_s() - begin;
  for (int i = 0; i < count; ++i) {
    const double share = wall * seconds[i] / busy;
    plan[i]->finish(status[i], share);
    const Cost c = cost(products[size_t(i)]);
    queue.account(int(Gemm::op), c.flops, c.bytes, share);
  }
  return true;
}

}  // namespace kernels
