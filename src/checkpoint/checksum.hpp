// SPDX-License-Identifier: Apache-2.0
// Checksums depend on the data alone, never on ranks or part boundaries. A tensor's bytes, in file
// order, are cut into blocks of 1 MiB; the last block may be shorter. A block hash is the XXH3-64
// of its bytes. A tensor checksum is the XXH3-64 of its block hashes (8 bytes each, little endian,
// in order). The file checksum is the XXH3-64 of all tensor checksums, ordered by tensor path.
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
