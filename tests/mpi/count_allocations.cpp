// SPDX-License-Identifier: Apache-2.0
#include "count_allocations.hpp"

#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <new>
#include <string>

namespace allocations {

std::atomic<bool> watching{false};
std::atomic<int64_t> by_us{0}, by_libraries{0};
Place first_by_us;

namespace {

struct Module {
  uintptr_t begin, end;
  bool ours, skipped;  // skipped: run-time libraries that allocate for their callers
};
Module modules[256];
int module_count = 0;

int add_module(dl_phdr_info* info, size_t, void*) {
  std::string name = info->dlpi_name ? info->dlpi_name : "";
  bool skipped =
      name.find("libstdc++") != std::string::npos || name.find("/libc.") != std::string::npos ||
      name.find("libfmt") != std::string::npos || name.find("libgcc_s") != std::string::npos;
  for (int i = 0; i < info->dlpi_phnum; ++i)
    if (const auto& p = info->dlpi_phdr[i];
        p.p_type == PT_LOAD && (p.p_flags & PF_X) && module_count < 256)
      modules[module_count++] = {info->dlpi_addr + p.p_vaddr,
                                 info->dlpi_addr + p.p_vaddr + p.p_memsz, name.empty(), skipped};
  return 0;
}

const Module* module_of(void* address) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(address);
  const Module* m = std::find_if(modules, modules + module_count,
                                 [&](const Module& x) { return at >= x.begin && at < x.end; });
  return m == modules + module_count || m->skipped ? nullptr : m;
}

// Counts one allocation for the module of the caller. For a caller in a run-time library, this is
// the module of the innermost frame outside of those libraries.
[[maybe_unused]] __attribute__((noinline)) void note(void* caller) {
  static thread_local bool inside = false;
  if (inside || !watching) return;
  inside = true;
  const Module* m = module_of(caller);
  Place place;
  if (!m || m->ours) place.count = backtrace(place.frames, kFrames);
  // frames 0 and 1 are this function and the allocator below
  for (int i = 2; i < place.count && !m; ++i) m = module_of(place.frames[i]);
  const bool ours = m && m->ours;
  if (ours && by_us++ == 0) first_by_us = place;
  if (!ours) ++by_libraries;
  inside = false;
}

}  // namespace

void watch(bool on) {
  if (on) {
    module_count = 0;
    dl_iterate_phdr(add_module, nullptr);
    Place warm_up;  // the first call loads a library
    backtrace(warm_up.frames, kFrames);
    by_us = by_libraries = 0;
  }
  watching = on;
}

}  // namespace allocations

#ifdef COUNT_ALLOCATIONS
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);

#define NOTE allocations::note(__builtin_return_address(0))
__attribute__((noinline)) void* malloc(size_t n) {
  NOTE;
  return __libc_malloc(n);
}
__attribute__((noinline)) void* calloc(size_t n, size_t m) {
  NOTE;
  return __libc_calloc(n, m);
}
__attribute__((noinline)) void* realloc(void* p, size_t n) {
  NOTE;
  return __libc_realloc(p, n);
}
__attribute__((noinline)) void* memalign(size_t a, size_t n) {
  NOTE;
  return __libc_memalign(a, n);
}
__attribute__((noinline)) void* aligned_alloc(size_t a, size_t n) {
  NOTE;
  return __libc_memalign(a, n);
}
__attribute__((noinline)) int posix_memalign(void** p, size_t a, size_t n) {
  NOTE;
  *p = __libc_memalign(a, n);
  return *p ? 0 : ENOMEM;
}
void free(void* p) { __libc_free(p); }
}
// Libraries reach this operator too, and are then the caller. Other forms of new go through malloc.
__attribute__((noinline)) void* operator new(size_t n) {
  NOTE;
  if (void* p = __libc_malloc(n ? n : 1)) return p;
  throw std::bad_alloc();
}
#endif
