// SPDX-License-Identifier: Apache-2.0
// A product of fixed shape, ready to run: its primitives, its blocks, and the time of its runs.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cpu/gemm_blocks.hpp"
#include "kernels/cpu/onednn_primitive.hpp"
#include "kernels/gemm.hpp"

namespace kernels {

// Runs a product as the library divides it, or in blocks that each one thread computes. Then
// neither the number of threads nor the load of the machine can change a bit.
class GemmPlan {
 public:
  explicit GemmPlan(const GemmKey& key);

  void run(const GemmOperands& p, Queue& queue);
  // Counts a run, or fails with the library's error.
  void finish(int status, double seconds);

  // For run_cpu_by_rows, which runs blocks of whole rows itself.
  bool by_rows() const { return in_blocks_ && columns_.count() == 1; }
  int64_t row_blocks() const { return rows_.count(); }
  int64_t rows_of_block() const { return rows_.block; }
  int workers() const { return workers_; }
  size_t scratch_bytes() const { return scratch_bytes_; }  // of one worker

  // Computes row block i, column block j by one thread, whose scratch is `own`. Does not throw.
  int run_block(const GemmOperands& p, int64_t i, int64_t j, int worker, char* own);

  GemmUse use() const;
  void reset_use();

 private:
  // A product has at most four shapes of blocks: the last row and the last column of them are
  // smaller.
  std::unique_ptr<OnednnPrimitive>& primitive(int64_t i, int64_t j) {
    return primitives_[(rows_.last(i) ? 2 : 0) + (columns_.last(j) ? 1 : 0)];
  }
  int run_blocks(const GemmOperands& p, char* scratch);
  dnnl_status_t run_widened_block(OnednnPrimitive& primitive, int worker, const GemmOperands& block,
                                  int64_t rows, int64_t columns, char* own);
  void activate(const GemmOperands& block, int64_t rows, int64_t columns) const;

  GemmKey key_;
  bool in_blocks_;
  Cut rows_, columns_;
  int workers_;
  std::unique_ptr<OnednnPrimitive> primitives_[4];
  size_t library_bytes_ = 0, scratch_bytes_ = 0;  // of a worker: the library's, and all
  int64_t wide_a_ = 0, wide_c_ = 0;               // floats of a worker's widened blocks
  int64_t calls_ = 0;
  double seconds_ = 0;
};

// Bytes beside the scratch of workers, so that it has an address where no worker needs any.
constexpr size_t kScratchLine = 64;

// Returns the calling thread's plan, made at the first use of a shape and kept: a run has a few
// dozen shapes.
GemmPlan& plan_for(const GemmKey& key);

}  // namespace kernels
