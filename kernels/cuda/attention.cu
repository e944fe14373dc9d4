// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of attention: by cuDNN, by products of cuBLASLt, or by our own kernels for
// all cases that neither serves.
#include "kernels/attention.hpp"
#include "kernels/cuda/attention_cublaslt.hpp"
#include "kernels/cuda/attention_cudnn.hpp"
#include "kernels/cuda/attention_own.hpp"
#include "kernels/paths.hpp"

namespace kernels {
namespace {

// Each library path returns false if it does not serve the op. The next path then overwrites all
// results.
template <class Args>
void run_attention(const Args& a, Queue& queue) {
  if (a.shape.batch == 0) return;
  if (attention_by_cudnn(a, queue)) return count_path(Path::attention_cudnn, queue);
  if (attention_by_products(a, queue)) return count_path(Path::attention_products, queue);
  count_path(Path::attention_own, queue);
  attention_by_tiles(a, queue);
}

}  // namespace

void run_cuda(const AttentionForward& a, Queue& queue) { run_attention(a, queue); }
void run_cuda(const AttentionBackward& a, Queue& queue) { run_attention(a, queue); }

}  // namespace kernels
