// SPDX-License-Identifier: Apache-2.0
// Counts allocations of this test program through new, for the test that a running engine allocates
// nothing.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

std::atomic<int64_t> allocations_made{0};

#ifndef __SANITIZE_ADDRESS__  // the sanitizer replaces new itself, so nothing is counted
void* operator new(size_t n) {
  ++allocations_made;
  if (void* p = std::malloc(n ? n : 1)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
#endif
