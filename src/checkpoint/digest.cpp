// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/digest.hpp"

#include <bit>
#include <cstdlib>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "device/memory.hpp"

namespace checkpoint {
namespace {

// The finaliser of SplitMix64 (Steele, Lea and Flood 2014): each bit of the input changes about
// half of the bits of the result.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t digest_of(comm::Comm& comm, const std::vector<shard::TensorSlice>& tensors,
                   device::Queue& queue) {
  uint64_t sum = 0;
  for (const shard::TensorSlice& t : tensors) {
    CHECK(t.type == device::DType::f32, "{}: digests are of f32", t.name);
    if (!t.writes) continue;
    const uint64_t name = base::xxh3(fmt::format("{} {}", t.name, fmt::join(t.shape, "x")));
    for (const auto& part : t.parts)
      device::read_on_host(t.view(part), queue, [&](device::View v) {
        for (int64_t i = 0; i < v.count; ++i)
          sum += mix(mix(name + uint64_t(part.begin + i)) ^ std::bit_cast<uint32_t>(v.f32()[i]));
      });
  }
  uint64_t all = 0;
  for (const std::string& text : comm.gather_text(std::to_string(sum)))
    all += std::strtoull(text.c_str(), nullptr, 10);
  return all;
}

}  // namespace checkpoint
