// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/digest.hpp"

#include <algorithm>
#include <cstring>

#include "base/hash.hpp"

namespace checkpoint {
namespace {

constexpr int64_t kReadAtOnce = 1 << 22;  // elements, which bounds the copy of a GPU's memory
// Odd numbers without structure: the golden ratio and constants of MurmurHash3's finaliser.
constexpr uint64_t kStep = 0x9e3779b97f4a7c15, kFirst = 0xff51afd7ed558ccd,
                   kSecond = 0xc4ceb9fe1a85ec53;

// Adds up the hashes of n elements with the bits of Word. The first one has index `begin`.
template <class Word>
uint64_t sum_of_hashes(const void* data, int64_t n, uint64_t seed, int64_t begin) {
  const auto* bytes = static_cast<const char*>(data);
  uint64_t place = seed + kStep * uint64_t(begin), sum = 0;
  for (int64_t i = 0; i < n; ++i, place += kStep) {
    Word word;
    std::memcpy(&word, bytes + i * int64_t(sizeof word), sizeof word);
    uint64_t h = place ^ (uint64_t(word) * kFirst);
    h = (h ^ (h >> 32)) * kSecond;
    sum += h ^ (h >> 29);
  }
  return sum;
}

uint64_t sum_of_view(const device::View& view, uint64_t seed, int64_t begin) {
  switch (device::size_of(view.type)) {
    case 1:
      return sum_of_hashes<uint8_t>(view.data, view.count, seed, begin);
    case 2:
      return sum_of_hashes<uint16_t>(view.data, view.count, seed, begin);
    case 4:
      return sum_of_hashes<uint32_t>(view.data, view.count, seed, begin);
    default:
      return sum_of_hashes<uint64_t>(view.data, view.count, seed, begin);
  }
}

}  // namespace

uint64_t digest_of(comm::Comm& world, const std::vector<shard::TensorSlice>& tensors,
                   const std::string& root, device::Queue& queue) {
  uint64_t sum = 0;
  for (const shard::TensorSlice& tensor : tensors) {
    if (!tensor.writes || !tensor.name.starts_with(root)) continue;
    const uint64_t seed = base::xxh3(tensor.name);
    for (const auto& part : tensor.parts) {
      const device::View all = tensor.view(part);
      for (int64_t at = 0; at < all.count; at += kReadAtOnce) {
        const device::View piece = all.slice(at, std::min(kReadAtOnce, all.count - at));
        device::read_on_host(piece, queue, [&](const device::View& view) {
          sum += sum_of_view(view, seed, part.begin + at);
        });
      }
    }
  }
  // A sum of int64 would overflow, so ranks add 32 bits at a time.
  const auto low = uint64_t(world.sum(int64_t(sum & 0xffffffff))),
             high = uint64_t(world.sum(int64_t(sum >> 32)));
  return low + (high << 32);
}

}  // namespace checkpoint
