// SPDX-License-Identifier: Apache-2.0
// The emulated GPU has no cuDNN, so attention runs on our own kernels.
#include "kernels/cuda/attention_cudnn.hpp"

namespace kernels {
bool attention_by_cudnn(const AttentionForward&, Queue&) { return false; }
bool attention_by_cudnn(const AttentionBackward&, Queue&) { return false; }
}  // namespace kernels
