// SPDX-License-Identifier: Apache-2.0
// Opens CUDA's libraries (cuBLASLt, cuDNN, NCCL) at the first call of a function. So the program
// starts on machines without them, and maps none if no GPU is used.
#pragma once

namespace device {

// Returns the address of `function` in the library `file` ("libcublasLt.so.13"). Throws
// Error(Exit::mesh) if the library or the function is missing, and names the searched places.
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
