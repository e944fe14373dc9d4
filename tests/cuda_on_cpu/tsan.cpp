// SPDX-License-Identifier: Apache-2.0
// Receives the accesses of kernels that are compiled with -fsanitize=thread, in place of that
// sanitizer's own library.
#include "watch.hpp"

using cuda_on_cpu::in_kernel;
using cuda_on_cpu::touch;

#define ACCESSES(bytes)                          \
  void __tsan_read##bytes(void* at) {            \
    if (in_kernel) touch(at, bytes, false);      \
  }                                              \
  void __tsan_write##bytes(void* at) {           \
    if (in_kernel) touch(at, bytes, true);       \
  }                                              \
  void __tsan_unaligned_read##bytes(void* at) {  \
    if (in_kernel) touch(at, bytes, false);      \
  }                                              \
  void __tsan_unaligned_write##bytes(void* at) { \
    if (in_kernel) touch(at, bytes, true);       \
  }

extern "C" {

ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

void __tsan_read_range(void* at, size_t bytes) {
  if (in_kernel) touch(at, bytes, false);
}
void __tsan_write_range(void* at, size_t bytes) {
  if (in_kernel) touch(at, bytes, true);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

// Atomics of host code in the same files as the kernels.
char __tsan_atomic8_load(const volatile char* at, int) {
  return __atomic_load_n(at, __ATOMIC_SEQ_CST);
}
int __tsan_atomic32_fetch_add(volatile int* at, int more, int) {
  return __atomic_fetch_add(at, more, __ATOMIC_SEQ_CST);
}

}  // extern "C"
