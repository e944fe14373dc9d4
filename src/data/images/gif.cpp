// SPDX-License-Identifier: Apache-2.0
// Decodes GIF through giflib: the first frame, on a canvas as large as the largest frame, like the
// published decoder.
#include <gif_lib.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.hpp"
#include "base/span.hpp"
#include "data/formats.hpp"
#include "data/images/decode.hpp"

namespace data {
namespace {

using base::Exit;

struct Rest {
  const uint8_t* data;
  size_t left;
};

int read_bytes(GifFileType* gif, GifByteType* out, int count) {
  Rest* rest = static_cast<Rest*>(gif->UserData);
  size_t n = std::min(rest->left, size_t(std::max(count, 0)));
  if (n) std::memcpy(out, rest->data, n);
  rest->data += n;
  rest->left -= n;
  return int(n);
}

class Reader {
 public:
  explicit Reader(const Bytes& file) : rest_{file.data(), file.size()} {
    int problem = 0;
    gif_ = DGifOpen(&rest_, read_bytes, &problem);
    if (!gif_) fail(problem);
  }
  ~Reader() { DGifCloseFile(gif_, nullptr); }
  Reader(const Reader&) = delete;

  Array first_frame() {
    int transparent = NO_TRANSPARENT_COLOR;
    if (!next_image(&transparent)) base::fail(Exit::data, "broken GIF: it holds no image");
    GifImageDesc frame = gif_->Image;
    check_image_size("GIF", frame.Width, frame.Height);
    ColorMapObject* map = gif_->Image.ColorMap ? gif_->Image.ColorMap : gif_->SColorMap;
    if (!map) base::fail(Exit::data, "broken GIF: it has no colours");
    std::vector<GifColorType> colours(map->Colors, map->Colors + map->ColorCount);
    std::vector<uint8_t> indices = read_indices(frame);
    auto [height, width] = canvas(frame);
    check_image_size("GIF", width, height);
    Array out(device::DType::u8, {height, width, 3});
    // Pixels that the frame leaves out or leaves transparent are black.
    std::fill_n(out.u8(), out.count(), uint8_t{0});
    for (int64_t y = frame.Top; y < std::min<int64_t>(frame.Top + frame.Height, height); ++y)
      for (int64_t x = frame.Left; x < std::min<int64_t>(frame.Left + frame.Width, width); ++x) {
        size_t index = indices[size_t((y - frame.Top) * frame.Width + x - frame.Left)];
        if (int(index) == transparent) continue;
        if (index >= colours.size())
          base::fail(Exit::data, "broken GIF: colour {} of a palette of {}", index, colours.size());
        uint8_t* to = out.u8() + (y * width + x) * 3;
        to[0] = colours[index].Red;
        to[1] = colours[index].Green;
        to[2] = colours[index].Blue;
      }
    return out;
  }

 private:
  [[noreturn]] static void fail(int problem) {
    const char* text = GifErrorString(problem);
    base::fail(Exit::data, "broken GIF: {}", text ? text : "no reason given");
  }
  void check(int result) const {
    if (result != GIF_OK) fail(gif_->Error);
  }

  // Reads up to the next image's description; returns false at the end. `transparent` receives the
  // transparent colour that extensions before the image name.
  bool next_image(int* transparent) {
    GifRecordType type = UNDEFINED_RECORD_TYPE;
    while (true) {
      check(DGifGetRecordType(gif_, &type));
      if (type == TERMINATE_RECORD_TYPE) return false;
      if (type == IMAGE_DESC_RECORD_TYPE) {
        check(DGifGetImageHeader(gif_));
        return true;
      }
      int code = 0;
      GifByteType* block = nullptr;
      check(DGifGetExtension(gif_, &code, &block));
      GraphicsControlBlock control;
      if (block && transparent && code == GRAPHICS_EXT_FUNC_CODE &&
          DGifExtensionToGCB(block[0], block + 1, &control) == GIF_OK)
        *transparent = control.TransparentColor;
      while (block) check(DGifGetExtensionNext(gif_, &block));
    }
  }

  std::vector<uint8_t> read_indices(const GifImageDesc& frame) {
    std::vector<uint8_t> out(size_t(frame.Width) * size_t(frame.Height));
    // Interlaced frames store every 8th row first, then the rows between, in four passes.
    constexpr int kFirst[] = {0, 4, 2, 1}, kEvery[] = {8, 8, 4, 2};
    for (int pass = 0; pass < (frame.Interlace ? 4 : 1); ++pass)
      for (int y = frame.Interlace ? kFirst[pass] : 0; y < frame.Height;
           y += frame.Interlace ? kEvery[pass] : 1)
        check(DGifGetLine(gif_, out.data() + size_t(y) * size_t(frame.Width), frame.Width));
    return out;
  }

  // Returns height and width of the largest frame. Later frames are skipped; a file that is cut
  // among them still has its first frame.
  std::pair<int64_t, int64_t> canvas(const GifImageDesc& first) {
    int64_t height = first.Height, width = first.Width;
    try {
      while (next_image(nullptr)) {
        height = std::max<int64_t>(height, gif_->Image.Height);
        width = std::max<int64_t>(width, gif_->Image.Width);
        int size = 0;
        GifByteType* block = nullptr;
        check(DGifGetCode(gif_, &size, &block));
        while (block) check(DGifGetCodeNext(gif_, &block));
      }
    } catch (const base::Error&) {
    }
    return {height, width};
  }

  Rest rest_;
  GifFileType* gif_ = nullptr;
};

}  // namespace

bool built_with_gif() { return true; }

Array decode_gif(const Bytes& file) {
  const base::Span span("decode a GIF", base::SpanKind::load);
  return Reader(file).first_frame();
}

}  // namespace data
