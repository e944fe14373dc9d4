// SPDX-License-Identifier: Apache-2.0
// Unpacks compressed bytes of weight files by libarchive. A build may lack it (data/formats.hpp).
#pragma once

#include <cstdint>
#include <string>

namespace checkpoint {

bool built_with_archive();

// The contents of a zstd frame, which must have `size` bytes, or a reason if the frame is damaged.
// For a longer frame, `bytes` has one byte more.
struct Unpacked {
  std::string bytes, problem;
};
Unpacked unpack_zstd(const std::string& packed, int64_t size);

}  // namespace checkpoint
