// SPDX-License-Identifier: Apache-2.0
// One oneDNN matrix product of fixed shape, which several threads may run at the same time.
#pragma once

#include <omp.h>

#include <dnnl.hpp>
#include <vector>

#include "kernels/cpu/gemm_key.hpp"

namespace kernels {

const dnnl::engine& onednn_engine();

// Sets OpenMP's number of threads within a scope. oneDNN reads it when a primitive is made and when
// it runs.
class ThreadScope {
 public:
  explicit ThreadScope(int threads) : before_(omp_get_max_threads()) {
    if (threads != before_) omp_set_num_threads(threads);
  }
  ~ThreadScope() {
    if (before_ != omp_get_max_threads()) omp_set_num_threads(before_);
  }
  ThreadScope(const ThreadScope&) = delete;

 private:
  int before_;
};

// A primitive, with the stream, memories and arguments of each of `workers` threads that run it.
class OnednnPrimitive {
 public:
  // With key.packed_b it takes b in the layout of `like`, if given.
  OnednnPrimitive(const GemmKey& key, int64_t m, int64_t n, int workers,
                  const OnednnPrimitive* like = nullptr);

  size_t scratch_bytes() const { return scratch_bytes_; }
  // With key.packed_b, run() takes b as pack_b() writes it: this many bytes, at a multiple of 64.
  size_t packed_bytes() const { return packed_.get_size(); }
  void pack_b(const char* b, char* packed);
  dnnl_status_t run(int worker, const GemmOperands& p, void* scratch);  // does not throw

 private:
  struct Worker {
    dnnl::stream stream;
    std::vector<dnnl::memory> memories;
    std::vector<dnnl_exec_arg_t> arguments;
  };
  dnnl::matmul primitive_;
  dnnl::reorder pack_;  // with key.packed_b
  dnnl::memory::desc plain_, packed_;
  std::vector<Worker> workers_;
  size_t scratch_bytes_ = 0;
  int scratch_index_ = -1, bias_index_ = -1, residual_index_ = -1;
};

}  // namespace kernels
