// SPDX-License-Identifier: Apache-2.0
// Checksums that depend on the data alone, never on ranks or part boundaries. A tensor's bytes (as
// they lie in the file) are cut into blocks of 1 MiB, the last one shorter. Block hash = XXH3-64 of
// its bytes; tensor checksum = XXH3-64 of its block hashes (8 bytes each, little endian, in order);
// file checksum = XXH3-64 of all tensor checksums, tensors ordered by path.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "base/hash.hpp"
#include "base/narrow.hpp"

namespace checkpoint {

constexpr int64_t kBlock = int64_t{1} << 20;

inline int64_t block_count(int64_t bytes) { return base::ceil_div(bytes, kBlock); }
inline int64_t block_bytes(int64_t block, int64_t bytes) {
  return std::min(kBlock, bytes - block * kBlock);
}
inline uint64_t hash_of(std::span<const uint64_t> hashes) {
  return base::xxh3(hashes.data(), hashes.size_bytes());
}
inline std::string hex(uint64_t hash) { return fmt::format("{:016x}", hash); }

}  // namespace checkpoint
