// SPDX-License-Identifier: Apache-2.0
#include "device/live_buffers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>

namespace device {
namespace {

constexpr size_t kMost = 2048, kLargest = 8, kNameBytes = 24;

struct Row {
  std::atomic<const void*> data{nullptr};  // null: free
  int64_t bytes = 0;
  bool on_gpu = false;
  char category[kNameBytes] = "";
};
std::array<Row, kMost> g_rows;
std::atomic<size_t> g_end{0};  // rows from here on were never used
std::mutex g_mutex;            // held by threads that write

double mib(int64_t bytes) { return double(bytes) / 0x1p20; }

// Writes into a buffer of fixed size.
struct Writer {
  char* buffer;
  size_t size, used = 0;
  template <class... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    const size_t room = size - used;
    used += std::min(
        room, fmt::format_to_n(buffer + used, room, format, std::forward<Args>(args)...).size);
  }
};

struct Sum {
  const char* category;
  bool on_gpu;
  int64_t bytes, buffers;
};

}  // namespace

void add_live_buffer(const void* data, const std::string& category, int64_t bytes, bool on_gpu) {
  const std::lock_guard lock(g_mutex);
  size_t at = 0;
  const size_t end = g_end;
  while (at < end && g_rows[at].data) ++at;
  if (at == kMost) return;
  Row& row = g_rows[at];
  row.bytes = bytes;
  row.on_gpu = on_gpu;
  std::strncpy(row.category, category.c_str(), kNameBytes - 1);
  row.data = data;
  g_end = std::max(end, at + 1);
}

void remove_live_buffer(const void* data) {
  const std::lock_guard lock(g_mutex);
  for (size_t at = g_end; at-- > 0;)
    if (g_rows[at].data == data) {
      g_rows[at].data = nullptr;
      return;
    }
}

size_t describe_live_buffers(char* buffer, size_t size) {
  constexpr size_t kMostSums = 32;
  std::array<Sum, kMostSums> sums;
  std::array<const Row*, kLargest> largest{};
  size_t count = 0;
  for (size_t at = 0; at < g_end; ++at) {
    const Row& row = g_rows[at];
    if (!row.data) continue;
    Sum* sum = std::find_if(sums.begin(), sums.begin() + count, [&](const Sum& s) {
      return s.on_gpu == row.on_gpu && std::strcmp(s.category, row.category) == 0;
    });
    if (sum == sums.begin() + count && count < kMostSums)
      sums[count++] = {row.category, row.on_gpu, 0, 0};
    if (sum < sums.begin() + count) {
      sum->bytes += row.bytes;
      ++sum->buffers;
    }
    const Row* next = &row;
    for (const Row*& place : largest)
      if (next && (!place || place->bytes < next->bytes)) std::swap(place, next);
  }
  if (count == 0) return 0;
  std::sort(sums.begin(), sums.begin() + count,
            [](const Sum& a, const Sum& b) { return a.bytes > b.bytes; });
  Writer out{buffer, size};
  out.put("memory   of buffers, MiB:");
  for (size_t i = 0; i < count; ++i)
    out.put("{} {} {:.1f} in {}{}", i ? "," : "", sums[i].category, mib(sums[i].bytes),
            sums[i].buffers, sums[i].on_gpu ? " on the GPU" : "");
  out.put("\nmemory   largest buffers, MiB:");
  for (size_t i = 0; i < kLargest && largest[i]; ++i)
    out.put("{} {} {:.1f}", i ? "," : "", largest[i]->category, mib(largest[i]->bytes));
  out.put("\n");
  return out.used;
}

}  // namespace device
