// SPDX-License-Identifier: Apache-2.0
// Encodes pixels as PNG.
#pragma once

#include <cstdint>
#include <string>

namespace data {

// `pixels`: u8 [height, width, channels], with 1 or 3 channels.
std::string png_of(const uint8_t* pixels, int64_t height, int64_t width, int64_t channels);

}  // namespace data
