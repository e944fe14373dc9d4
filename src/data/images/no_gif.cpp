// SPDX-License-Identifier: Apache-2.0
// Replaces gif.cpp in programs without giflib.
#include "base/error.hpp"
#include "data/formats.hpp"
#include "data/images/decode.hpp"

namespace data {

bool built_with_gif() { return false; }

// Not a bad sample, which another one may replace: many samples will be like this.
Array decode_gif(const Bytes&) {
  base::fail(base::Exit::config,
             "a GIF image, and this program was built without giflib (TRAINER_WITHOUT): build it "
             "with giflib, or convert the images to PNG or JPEG");
}

}  // namespace data
