// SPDX-License-Identifier: Apache-2.0
// Decodes WebP through libwebp; still images only.
#include <webp/decode.h>

#include "base/error.hpp"
#include "base/span.hpp"
#include "data/formats.hpp"
#include "data/images/decode.hpp"

namespace data {

bool built_with_webp() { return true; }

Array decode_webp(const Bytes& file) {
  const base::Span span("decode a WebP", base::SpanKind::load);
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(file.data(), file.size(), &features) != VP8_STATUS_OK)
    base::fail(base::Exit::data, "broken WebP header");
  if (features.has_animation)
    base::fail(base::Exit::data, "an animated WebP; still images are read: convert it");
  check_image_size("WebP", features.width, features.height);
  Array out(device::DType::u8, {features.height, features.width, 3});
  if (!WebPDecodeRGBInto(file.data(), file.size(), out.u8(), out.bytes.size(), features.width * 3))
    base::fail(base::Exit::data, "broken WebP: the data is damaged or ends early");
  return out;
}

}  // namespace data
