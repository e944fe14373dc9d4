// SPDX-License-Identifier: Apache-2.0
// Plans of oneDNN's products: blocks, primitives and the time of runs.
#include "kernels/cpu/gemm_plan.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>

#include "base/clock.hpp"
#include "kernels/cpu/portable.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels {

GemmPlan::GemmPlan(const GemmKey& key)
    : key_(key),
      in_blocks_(runs_in_blocks(key)),
      pads_(key.rows_alike),
      rows_(cut_rows(key)),
      columns_(Cut::equal(key.n, block_size(key).columns)),
      workers_(in_blocks_ && blocks() > 1 ? key.threads : 1) {
  ThreadScope scope(in_blocks_ ? 1 : key.threads);
  if (!in_blocks_) {
    primitives_[0] = std::make_unique<OnednnPrimitive>(key, key.m, key.n, 1);
  } else {
    for (int64_t i = 0; i < int64_t(rows_.size()); ++i)
      for (int64_t j : {int64_t{0}, columns_.count() - 1})
        if (auto& p = primitive(i, j); !p)
          p = std::make_unique<OnednnPrimitive>(key, rows_[size_t(i)].room, columns_.size(j),
                                                workers_, primitive(0, 0).get());
  }
  for (const auto& p : primitives_)
    if (p)
      library_bytes_ =
          std::max(library_bytes_, size_t(base::round_up(int64_t(p->scratch_bytes()), 64)));
  if (key.packed_b)
    packed_bytes_ = size_t(base::round_up(int64_t(primitive(0, 0)->packed_bytes()), 64));
  // The first block is the largest one, and the last one alone has padding.
  if (key.widen) wide_a_ = base::round_up(rows_[0].room * key.k, Cut::kUnit);
  if (key.rounds()) wide_c_ = base::round_up(rows_[0].room * key.n, Cut::kUnit);
  if (const RowBlock& last = rows_.back(); last.rows < last.room) {
    padded_a_ = base::round_up(last.room * key.lda * a_size(), int64_t(kScratchLine));
    padded_c_ = base::round_up(last.room * key.ldc * c_size(), int64_t(kScratchLine));
    if (key.residual)
      padded_residual_ =
          base::round_up(last.room * key.ldc * int64_t(sizeof(float)), int64_t(kScratchLine));
  }
  scratch_bytes_ = library_bytes_ + size_t(wide_a_ + wide_c_) * sizeof(float) +
                   size_t(padded_a_ + padded_c_ + padded_residual_);
}

void GemmPlan::run(GemmOperands p, Queue& queue) {
  double begin = base::now_s();
  const size_t workers_bytes = size_t(workers_) * scratch_bytes_ + kScratchLine;
  char* scratch = static_cast<char*>(queue.scratch(workers_bytes + packed_bytes_));
  int status = dnnl_success;
  pack_b(p, scratch + workers_bytes);  // a multiple of 64, as all parts are
  if (!in_blocks_) {
    ThreadScope scope(key_.threads);
    status = primitives_[0]->run(0, p, scratch);
  } else {
    status = run_blocks(p, scratch);
  }
  finish(status, base::now_s() - begin);
}

void GemmPlan::pack_b(GemmOperands& p, char* packed) {
  if (!packed_bytes_) return;
  ThreadScope scope(key_.threads);
  // All shapes of blocks read one layout. A product with a packed b has blocks of all columns.
  primitive(0, 0)->pack_b(p.b, packed);
  p.b = packed;
}

void GemmPlan::finish(int status, double seconds) {
  if (status != dnnl_success)
    base::fail(base::Exit::internal, "gemm: oneDNN returned {} for m {}, n {}, k {}", status,
               key_.m, key_.n, key_.k);
  ++calls_;
  seconds_ += seconds;
}

int GemmPlan::run_block(const GemmOperands& p, int64_t i, int64_t j, int worker, char* own) {
  const int64_t row_step = key_.trans_a ? 1 : key_.lda, column_step = key_.trans_b ? key_.ldb : 1;
  const int64_t b_size = key_.narrow ? 2 : 4;
  const auto [row, rows, room] = rows_[size_t(i)];
  const int64_t column = j * columns_.block, columns = columns_.size(j);
  GemmOperands block{p.c + (row * key_.ldc + column) * c_size(),
                     p.a + row * row_step * a_size(),
                     p.b + column * column_step * b_size,
                     p.bias ? p.bias + column : nullptr,
                     p.residual ? p.residual + row * key_.ldc + column : nullptr,
                     nullptr,
                     nullptr};
  const int status =
      rows < room
          ? run_padded_block(*primitive(i, j), worker, block, rows_[size_t(i)], columns, own)
          : run_whole_block(*primitive(i, j), worker, block, rows, columns, own);
  const int64_t packed = (row * key_.n + column) * c_size();
  if (key_.gelu) block.gelu = p.gelu + packed;
  if (key_.gelu_of) block.gelu_of = p.gelu_of + packed;
  if (key_.gelu || key_.gelu_of) activate(block, rows, columns);
  return status;
}

GemmUse use_of(const GemmKey& key, int64_t calls, double seconds) {
  return {key.m,
          key.n,
          key.k,
          key.trans_a,
          key.trans_b,
          key.bias,
          key.residual,
          key.accumulate,
          calls,
          seconds,
          key.narrow || key.widen ? DType::bf16 : DType::f32,
          key.narrow_c ? DType::bf16 : DType::f32,
          key.gelu,
          key.gelu_of};
}
GemmUse GemmPlan::use() const { return use_of(key_, calls_, seconds_); }

void GemmPlan::reset_use() {
  calls_ = 0;
  seconds_ = 0;
}

int GemmPlan::run_blocks(const GemmOperands& p, char* scratch) {
  ThreadScope scope(1);  // the workers inherit it
  std::atomic<int> status{dnnl_success};
  const int64_t count = int64_t(rows_.size());
  // The team is all threads or one. OpenMP would end the threads that a smaller team leaves over,
  // and start new ones for the next op.
#pragma omp parallel for num_threads(workers_) schedule(dynamic, 1)
  for (int64_t t = 0; t < blocks(); ++t) {
    const int worker = omp_get_thread_num();
    const int s =
        run_block(p, t % count, t / count, worker, scratch + size_t(worker) * scratch_bytes_);
    if (s != dnnl_success) status = s;
  }
  return status;
}

int GemmPlan::run_whole_block(OnednnPrimitive& primitive, int worker, const GemmOperands& block,
                              int64_t rows, int64_t columns, char* own) {
  return key_.widen ? run_widened_block(primitive, worker, block, rows, columns, own)
                    : primitive.run(worker, block, own);
}

// Runs a block whose a is bf16: widens a, multiplies floats, and rounds c if it is bf16, all while
// the block is in cache.
dnnl_status_t GemmPlan::run_widened_block(OnednnPrimitive& primitive, int worker,
                                          const GemmOperands& block, int64_t rows, int64_t columns,
                                          char* own) {
  const VectorTable& table = vector_table();
  float *a = reinterpret_cast<float*>(own + library_bytes_), *c = a + wide_a_;
  for (int64_t r = 0; r < rows; ++r)
    table.from_bf16(a + r * key_.k, reinterpret_cast<const uint16_t*>(block.a) + r * key_.lda,
                    key_.k);
  GemmOperands wide = block;
  wide.a = reinterpret_cast<char*>(a);
  if (key_.rounds()) wide.c = reinterpret_cast<char*>(c);
  for (int64_t r = 0; key_.rounds() && key_.accumulate && r < rows; ++r)
    table.from_bf16(c + r * key_.n, reinterpret_cast<const uint16_t*>(block.c) + r * key_.ldc,
                    columns);
  dnnl_status_t status = primitive.run(worker, wide, own);
  for (int64_t r = 0; key_.rounds() && r < rows; ++r)
    table.to_bf16(reinterpret_cast<uint16_t*>(block.c) + r * key_.ldc, c + r * key_.n, columns);
  return status;
}

// Runs a block whose last rows are missing on a copy with rows of zeros.
int GemmPlan::run_padded_block(OnednnPrimitive& primitive, int worker, const GemmOperands& block,
                               const RowBlock& cut, int64_t columns, char* own) {
  const int64_t rows = cut.rows;
  char* const a = own + scratch_bytes_ - padded_a_ - padded_c_ - padded_residual_;
  GemmOperands padded = block;
  // The primitive's leading dimensions are those of the operands, so the copies have them too.
  auto copy = [&](char* to, const char* from, int64_t step, int64_t bytes) {
    for (int64_t r = 0; r < rows; ++r) std::memcpy(to + r * step, from + r * step, size_t(bytes));
  };
  padded.a = a;
  std::memset(a + rows * key_.lda * a_size(), 0, size_t((cut.room - rows) * key_.lda * a_size()));
  copy(padded.a, block.a, key_.lda * a_size(), key_.k * a_size());
  padded.c = a + padded_a_;
  const int64_t c_step = key_.ldc * c_size();
  if (key_.accumulate) copy(padded.c, block.c, c_step, columns * c_size());
  if (key_.residual) {
    padded.residual = reinterpret_cast<float*>(padded.c + padded_c_);
    copy(reinterpret_cast<char*>(padded.residual), reinterpret_cast<const char*>(block.residual),
         key_.ldc * 4, columns * 4);
  }
  const int status = run_whole_block(primitive, worker, padded, cut.room, columns, own);
  copy(block.c, padded.c, c_step, columns * c_size());
  return status;
}

// Applies GELU, or its derivative, to a block.
void GemmPlan::activate(const GemmOperands& block, int64_t rows, int64_t columns) const {
  vector_table().with(
      key_.narrow_c ? DType::bf16 : DType::f32, [&](const auto& loops, auto element) {
        using T = decltype(element);
        auto at = [](char* p, int64_t offset) { return reinterpret_cast<T*>(p) + offset; };
        for (int64_t r = 0; r < rows; ++r) {
          T* c = at(block.c, r * key_.ldc);
          if (key_.gelu) loops.gelu_forward(at(block.gelu, r * key_.n), c, columns);
          if (key_.gelu_of) loops.gelu_backward(c, c, at(block.gelu_of, r * key_.n), columns);
        }
      });
}

namespace {
// Each calling thread has its own plans, so no lock is needed.
thread_local std::map<GemmKey, std::unique_ptr<GemmPlan>> plans;
}  // namespace

GemmPlan& plan_for(const GemmKey& key) {
  auto it = plans.find(key);
  if (it == plans.end()) {
    try {
      it = plans.emplace(key, std::make_unique<GemmPlan>(key)).first;
    } catch (const dnnl::error& e) {
      base::fail(base::Exit::internal,
                 "gemm: oneDNN cannot do m {}, n {}, k {}, lda {}, ldb {}, ldc {}: {}", key.m,
                 key.n, key.k, key.lda, key.ldb, key.ldc, e.what());
    }
  }
  return *it->second;
}

std::vector<GemmUse> gemm_uses() {
  std::vector<GemmUse> uses;
  for (const auto& [key, plan] : plans)
    if (GemmUse use = plan->use(); use.calls) uses.push_back(use);
  for (const GemmUse& use : portable_gemm_uses()) uses.push_back(use);
  return uses;
}

void reset_gemm_uses() {
  for (const auto& [key, plan] : plans) plan->reset_use();
  reset_portable_gemm_uses();
}

}  // namespace kernels
