// SPDX-License-Identifier: Apache-2.0
#include "base/hash.hpp"

#include <fmt/format.h>
#include <openssl/sha.h>
#include <xxhash.h>

namespace base {

uint64_t xxh3(const void* data, size_t bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(data, bytes, seed);
}

std::string sha256_hex(std::string_view text) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  std::string out;
  for (unsigned char c : digest) out += fmt::format("{:02x}", c);
  return out;
}

}  // namespace base
