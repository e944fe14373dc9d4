// SPDX-License-Identifier: Apache-2.0
// The only header that names types of CUDA's run time; .cu files and what calls CUDA's libraries
// include it.
#pragma once

#include <cuda_runtime.h>

#include "device/queue.hpp"

namespace device {

// The stream of a queue of kind cuda.
cudaStream_t stream_of(const Queue& queue);

// Ends the job with exit 3 unless `status` is success; `what` says what was asked for. Errors of
// kernels that ran earlier come up here too, which the message says.
void check_cuda(cudaError_t status, const char* what);

}  // namespace device
