// SPDX-License-Identifier: Apache-2.0
// CUDA's libraries (cuBLASLt, cuDNN, NCCL) are opened when their first function is called: the
// program starts on machines without them, and does not map them where no GPU is used.
#pragma once

namespace device {

// The address of `function` of the library `file` ("libcublasLt.so.13"). Ends the job with exit 3
// where the library or the function is missing, and says where was looked.
void* library_function(const char* file, const char* function);

}  // namespace device

// Calls a function as its header declares it: LIBRARY_FUNCTION("libx.so.1", xCreate)(&handle). In
// tests/cuda_on_cpu the functions are linked.
#ifdef CUDA_ON_CPU
#define LIBRARY_FUNCTION(file, function) function
#else
#define LIBRARY_FUNCTION(file, function)                                                    \
  [] {                                                                                      \
    static const auto address =                                                             \
        reinterpret_cast<decltype(&function)>(::device::library_function(file, #function)); \
    return address;                                                                         \
  }()
#endif
