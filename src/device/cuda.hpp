// SPDX-License-Identifier: Apache-2.0
// The only header that names types of the CUDA runtime. Files that are CUDA code or call CUDA's
// libraries include it.
#pragma once

#include <cuda_runtime.h>

#include "device/queue.hpp"

namespace device {

// Returns the stream of a queue of kind cuda.
cudaStream_t stream_of(const Queue& queue);

// Throws Error(Exit::mesh) unless `status` is success; `what` names the action. Errors of earlier
// kernels also appear here, which the message mentions.
void check_cuda(cudaError_t status, const char* what);

}  // namespace device
