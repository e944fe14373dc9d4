// SPDX-License-Identifier: Apache-2.0
// The plan of a product of fixed shape: oneDNN's primitives, blocks, and the time of its runs.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cpu/gemm_blocks.hpp"
#include "kernels/cpu/onednn_primitive.hpp"
#include "kernels/gemm.hpp"

namespace kernels {

// Runs a product as the library divides it, or in blocks, each computed by one thread. With blocks,
// neither the number of threads nor the load of the machine changes a bit. There are many members
// because the plan keeps all that a run would otherwise derive again from the shape.
class GemmPlan {
 public:
  explicit GemmPlan(const GemmKey& key);

  void run(GemmOperands p, Queue& queue);
  // Counts a run. Throws if `status` is an error of the library.
  void finish(int status, double seconds);

  // For run_cpu_by_rows, which runs blocks of whole rows itself.
  bool by_rows() const { return in_blocks_ && columns_.count() == 1; }
  const std::vector<RowBlock>& row_blocks() const { return rows_; }
  int workers() const { return workers_; }
  size_t scratch_bytes() const { return scratch_bytes_; }  // of one worker
  // Bytes of a packed b, a multiple of 64; 0: b is not packed.
  size_t packed_bytes() const { return packed_bytes_; }
  // Packs b, and makes p use the packed copy.
  void pack_b(GemmOperands& p, char* packed);

  // Computes row block i, column block j; does not throw. `own` is the scratch of the worker.
  int run_block(const GemmOperands& p, int64_t i, int64_t j, int worker, char* own);

  GemmUse use() const;
  void reset_use();

 private:
  // A product has at most four shapes of blocks, because blocks in the last row and in the last
  // column may be smaller. Where rows are alike, blocks have one to three units of rows.
  std::unique_ptr<OnednnPrimitive>& primitive(int64_t i, int64_t j) {
    const int64_t room = rows_[size_t(i)].room;
    return primitives_[pads_ ? room / kAlikeUnit
                             : (room != rows_[0].room ? 2 : 0) + (columns_.last(j) ? 1 : 0)];
  }
  int64_t blocks() const { return int64_t(rows_.size()) * columns_.count(); }
  // Bytes of an element that the caller hands over.
  int64_t a_size() const { return key_.narrow || key_.widen ? 2 : 4; }
  int64_t c_size() const { return key_.narrow_c ? 2 : 4; }
  int run_blocks(const GemmOperands& p, char* scratch);
  int run_whole_block(OnednnPrimitive& primitive, int worker, const GemmOperands& block,
                      int64_t rows, int64_t columns, char* own);
  dnnl_status_t run_widened_block(OnednnPrimitive& primitive, int worker, const GemmOperands& block,
                                  int64_t rows, int64_t columns, char* own);
  int run_padded_block(OnednnPrimitive& primitive, int worker, const GemmOperands& block,
                       const RowBlock& cut, int64_t columns, char* own);
  void activate(const GemmOperands& block, int64_t rows, int64_t columns) const;

  GemmKey key_;
  bool in_blocks_, pads_;  // pads_: blocks have rows of padding
  std::vector<RowBlock> rows_;
  Cut columns_;
  int workers_;
  std::unique_ptr<OnednnPrimitive> primitives_[4];
  size_t library_bytes_ = 0, scratch_bytes_ = 0;  // scratch of a worker: the library's part, all
  size_t packed_bytes_ = 0;
  int64_t wide_a_ = 0, wide_c_ = 0;  // floats of a worker's widened blocks of a and c
  int64_t padded_a_ = 0, padded_c_ = 0, padded_residual_ = 0;  // bytes of a worker's padded block
  int64_t calls_ = 0;
  double seconds_ = 0;
};

GemmUse use_of(const GemmKey& key, int64_t calls, double seconds);

// Extra bytes, so that scratch has an address even if no worker needs any.
constexpr size_t kScratchLine = 64;

// Returns the calling thread's plan. The first use of a key makes it, and it is kept: a run has a
// few dozen shapes.
GemmPlan& plan_for(const GemmKey& key);

}  // namespace kernels
