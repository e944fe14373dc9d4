// SPDX-License-Identifier: Apache-2.0
#include "data/images/decode.hpp"

#include <algorithm>
#include <string_view>

#include "base/error.hpp"
#include "base/pointer_file.hpp"
#include "base/text.hpp"

namespace data {

using base::Exit;

void check_image_size(const char* format, int64_t width, int64_t height) {
  if (width < 1 || height < 1)
    base::fail(Exit::data, "a {} image of {} x {} pixels", format, width, height);
  if (width > kMostPixels / height)
    base::fail(Exit::data, "a {} image of {} x {} pixels; at most {} are read", format, width,
               height, kMostPixels);
}

Array decode_image(const Bytes& file, bool precise) {
  std::string_view head(reinterpret_cast<const char*>(file.data()),
                        std::min<size_t>(file.size(), 16));
  auto is = [&](std::string_view magic, size_t at = 0) {
    return head.size() >= at && head.substr(at, magic.size()) == magic;
  };
  if (is("\xff\xd8\xff")) return decode_jpeg(file, precise);
  if (is("\x89PNG\r\n\x1a\n")) return decode_png(file);
  if (is("RIFF") && is("WEBP", 8)) return decode_webp(file);
  if (is("GIF8")) return decode_gif(file);
  for (auto [magic, name] :
       {std::pair{"BM", "BMP"}, {"II*", "TIFF"}, {"MM", "TIFF"}, {"8BPS", "PSD"}})
    if (is(magic))
      base::fail(Exit::data, "a {} image; JPEG, PNG, WebP and GIF are read: convert it", name);
  if (head.empty()) base::fail(Exit::data, "an empty file instead of an image");
  if (const std::string pointer = base::pointer_problem(
          {reinterpret_cast<const char*>(file.data()), std::min<size_t>(file.size(), 64)});
      !pointer.empty())
    base::fail(Exit::data, "not an image: {}", pointer);
  base::fail(Exit::data, "not an image: JPEG, PNG, WebP and GIF are read, this begins with {}",
             base::quoted(head.substr(0, 8)));
}

}  // namespace data
