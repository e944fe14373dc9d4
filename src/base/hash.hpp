// SPDX-License-Identifier: Apache-2.0
// Hashes: XXH3-64 for checksums and digests that ranks compare, SHA-256 for names that people
// compare.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace base {

uint64_t xxh3(const void* data, size_t bytes, uint64_t seed = 0);
inline uint64_t xxh3(std::string_view text) { return xxh3(text.data(), text.size()); }
std::string sha256_hex(std::string_view text);

}  // namespace base
