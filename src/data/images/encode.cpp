// SPDX-License-Identifier: Apache-2.0
#include "data/images/encode.hpp"

#include <png.h>

#include "base/error.hpp"

namespace data {

std::string png_of(const uint8_t* pixels, int64_t height, int64_t width, int64_t channels) {
  CHECK(channels == 1 || channels == 3, "an image of {} channels", channels);
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = png_uint_32(width);
  image.height = png_uint_32(height);
  image.format = channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
  std::string file(PNG_IMAGE_PNG_SIZE_MAX(image), '\0');
  png_alloc_size_t size = file.size();
  if (!png_image_write_to_memory(&image, file.data(), &size, 0, pixels, 0, nullptr))
    base::fail(base::Exit::internal, "libpng: {}", image.message);
  file.resize(size);
  return file;
}

}  // namespace data
