// SPDX-License-Identifier: Apache-2.0
#include "base/shortage.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <new>

#include "base/error.hpp"
#include "base/memory_limit.hpp"
#include "base/process_memory.hpp"

namespace base {
namespace {

constexpr size_t kTextBytes = 8192;
char g_text[kTextBytes] = "";
std::atomic<bool> g_begun{false}, g_written{false};

constexpr size_t kMostSources = 8;
std::array<size_t (*)(char*, size_t), kMostSources> g_sources{};
size_t g_source_count = 0;

// Appends to g_text.
template <class... Args>
void put(size_t& used, fmt::format_string<Args...> format, Args&&... args) {
  const size_t room = kTextBytes - 1 - used;
  used += std::min(room,
                   fmt::format_to_n(g_text + used, room, format, std::forward<Args>(args)...).size);
}

double mib(int64_t bytes) { return double(bytes) / 0x1p20; }

void on_failing_new() {
  note_shortage(0, "an object of the program");
  throw std::bad_alloc();
}

}  // namespace

void note_shortage(int64_t bytes, const char* purpose) noexcept {
  if (g_begun.exchange(true)) return;
  try {
    size_t used = 0;
    const Where w = where();
    char thread[16] = "?";
    ::pthread_getname_np(::pthread_self(), thread, sizeof thread);
    put(used, "memory   ran out at rank {} of {}, phase {}, step {}, in thread {}: ", w.rank,
        w.ranks, w.phase, w.step, thread);
    if (bytes > 0) put(used, "{:.1f} MiB for {}\n", mib(bytes), purpose);
    if (bytes <= 0) put(used, "{}\n", purpose);
    const ProcessMemory m = process_memory();
    put(used,
        "memory   of the process, MiB: resident {:.1f} (peak {:.1f}) = anonymous {:.1f} + files "
        "{:.1f} + shared {:.1f}; swapped {:.1f}; address space {:.1f}",
        mib(m.resident), mib(m.peak), mib(m.anonymous), mib(m.file), mib(m.shared), mib(m.swapped),
        mib(m.address_space));
    if (const AddressSpace space = address_space(); space.limit > 0)
      put(used, " of {:.1f} that ulimit -v allows", mib(space.limit));
    put(used, "\n");
    for (size_t i = 0; i < g_source_count; ++i)
      used += std::min(kTextBytes - 1 - used, g_sources[i](g_text + used, kTextBytes - 1 - used));
    g_text[used] = '\0';
  } catch (...) {  // what was written until then stays
  }
  g_written = true;
}

const char* shortage_text() noexcept { return g_written ? g_text : ""; }

void forget_shortage() {
  g_begun = g_written = false;
  std::fill(g_text, g_text + kTextBytes, '\0');
}

void add_shortage_source(size_t (*describe)(char* buffer, size_t size)) {
  if (g_source_count < kMostSources) g_sources[g_source_count++] = describe;
}

void note_failing_new() { std::set_new_handler(on_failing_new); }

}  // namespace base
