// SPDX-License-Identifier: Apache-2.0
// Replaces webp.cpp in programs without libwebp.
#include "base/error.hpp"
#include "data/formats.hpp"
#include "data/images/decode.hpp"

namespace data {

bool built_with_webp() { return false; }

// Not a bad sample, which another one may replace: many samples will be like this.
Array decode_webp(const Bytes&) {
  base::fail(base::Exit::config,
             "a WebP image, and this program was built without libwebp (TRAINER_WITHOUT): build it "
             "with libwebp, or convert the images to PNG or JPEG");
}

}  // namespace data
