// SPDX-License-Identifier: Apache-2.0
// Plans of oneDNN's products: blocks, primitives and the time of runs.
#include "kernels/cpu/gemm_plan.hpp"

#include <algorithm>
#include <atomic>
#include <map>

#include "base/clock.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels {

GemmPlan::GemmPlan(const GemmKey& key)
    : key_(key),
      in_blocks_(runs_in_blocks(key)),
      rows_(key.m, block_size(key).rows),
      columns_(key.n, block_size(key).columns),
      workers_(in_blocks_ && rows_.count() * columns_.count() > 1 ? key.threads : 1) {
  ThreadScope scope(in_blocks_ ? 1 : key.threads);
  if (!in_blocks_) {
    primitives_[0] = std::make_unique<OnednnPrimitive>(key, key.m, key.n, 1);
  } else {
    for (int64_t i : {int64_t{0}, rows_.count() - 1})
      for (int64_t j : {int64_t{0}, columns_.count() - 1})
        if (auto& p = primitive(i, j); !p)
          p = std::make_unique<OnednnPrimitive>(key, rows_.size(i), columns_.size(j), workers_);
  }
  for (const auto& p : primitives_)
    if (p)
      library_bytes_ =
          std::max(library_bytes_, size_t(base::round_up(int64_t(p->scratch_bytes()), 64)));
  if (key.widen) wide_a_ = base::round_up(rows_.block * key.k, Cut::kUnit);
  if (key.rounds()) wide_c_ = base::round_up(rows_.block * key.n, Cut::kUnit);
  scratch_bytes_ = library_bytes_ + size_t(wide_a_ + wide_c_) * sizeof(float);
}

void GemmPlan::run(const GemmOperands& p, Queue& queue) {
  double begin = base::now_s();
  char* scratch =
      static_cast<char*>(queue.scratch(size_t(workers_) * scratch_bytes_ + kScratchLine));
  int status = dnnl_success;
  if (!in_blocks_) {
    ThreadScope scope(key_.threads);
    status = primitives_[0]->run(0, p, scratch);
  } else {
    status = run_blocks(p, scratch);
  }
  finish(status, base::now_s() - begin);
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
  const int64_t a_size = key_.narrow || key_.widen ? 2 : 4, b_size = key_.narrow ? 2 : 4,
                c_size = key_.narrow_c ? 2 : 4;
  const int64_t row = i * rows_.block, column = j * columns_.block;
  GemmOperands block{p.c + (row * key_.ldc + column) * c_size,
                     p.a + row * row_step * a_size,
                     p.b + column * column_step * b_size,
                     p.bias ? p.bias + column : nullptr,
                     p.residual ? p.residual + row * key_.ldc + column : nullptr,
                     nullptr,
                     nullptr};
  const int status = key_.widen ? run_widened_block(*primitive(i, j), worker, block, rows_.size(i),
                                                    columns_.size(j), own)
                                : primitive(i, j)->run(worker, block, own);
  const int64_t packed = (row * key_.n + column) * c_size;
  if (key_.gelu) block.gelu = p.gelu + packed;
  if (key_.gelu_of) block.gelu_of = p.gelu_of + packed;
  if (key_.gelu || key_.gelu_of) activate(block, rows_.size(i), columns_.size(j));
  return status;
}

GemmUse GemmPlan::use() const {
  return {key_.m,
          key_.n,
          key_.k,
          key_.trans_a,
          key_.trans_b,
          key_.bias,
          key_.residual,
          key_.accumulate,
          calls_,
          seconds_,
          key_.narrow || key_.widen ? DType::bf16 : DType::f32,
          key_.narrow_c ? DType::bf16 : DType::f32,
          key_.gelu,
          key_.gelu_of};
}

void GemmPlan::reset_use() {
  calls_ = 0;
  seconds_ = 0;
}

int GemmPlan::run_blocks(const GemmOperands& p, char* scratch) {
  ThreadScope scope(1);  // the workers inherit it
  std::atomic<int> status{dnnl_success};
  int64_t blocks = rows_.count() * columns_.count();
  // The team is all threads or one. OpenMP would end the threads that a smaller team leaves over,
  // and start new ones for the next op.
#pragma omp parallel for num_threads(workers_) schedule(dynamic, 1)
  for (int64_t t = 0; t < blocks; ++t) {
    const int worker = omp_get_thread_num();
    const int s = run_block(p, t % rows_.count(), t / rows_.count(), worker,
                            scratch + size_t(worker) * scratch_bytes_);
    if (s != dnnl_success) status = s;
  }
  return status;
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
  dnnl_status_t status = primitive.run(worker, wide, own);
  for (int64_t r = 0; key_.rounds() && r < rows; ++r)
    table.to_bf16(reinterpret_cast<uint16_t*>(block.c) + r * key_.ldc, c + r * key_.n, columns);
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
  return uses;
}

void reset_gemm_uses() {
  for (const auto& [key, plan] : plans) plan->reset_use();
}

}  // namespace kernels
