// SPDX-License-Identifier: Apache-2.0
// Decodes JPEG through libjpeg-turbo.
#include <turbojpeg.h>

#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "data/images/decode.hpp"

namespace data {
namespace {

using base::Exit;

struct Destroy {
  void operator()(void* handle) const { tjDestroy(handle); }
};

// Keeps one decompressor per thread: creating one costs more than decoding a thumbnail.
tjhandle decompressor() {
  thread_local std::unique_ptr<void, Destroy> handle{tjInitDecompress()};
  if (!handle) base::fail(Exit::internal, "libjpeg-turbo: {}", tjGetErrorStr2(nullptr));
  return handle.get();
}

// The library continues after "warnings". Most of them mean lost pixels, so they are errors here.
// Bytes between the scan and the end marker are harmless if the end marker is present.
bool harmless(std::string_view warning, const Bytes& file) {
  if (warning.find("extraneous bytes before marker") == warning.npos) return false;
  std::string_view all(reinterpret_cast<const char*>(file.data()), file.size());
  size_t last = all.find_last_not_of(std::string_view("\0\r\n ", 4));
  return last != all.npos && last >= 1 && all.substr(last - 1, 2) == "\xff\xd9";
}

// Returns the file without three faults of the header that good files have: bytes between segments,
// a JFIF version other than 1, and an Adobe colour transform that the library does not know. For
// the last one the library uses the usual transform, as here. The library keeps only the first
// warning, so the mended file is decoded again.
Bytes with_plain_header(const Bytes& file) {
  const uint8_t* p = file.data();
  std::vector<uint8_t> out(p, p + std::min<size_t>(file.size(), 2));
  size_t at = 2, components = 0, transform = 0;  // offset of Adobe's transform in `out`
  while (at + 4 <= file.size()) {
    if (p[at] != 0xff || p[at + 1] == 0xff || p[at + 1] == 0x00) {
      ++at;
      continue;
    }
    uint8_t marker = p[at + 1];
    size_t length = 2 + (size_t(p[at + 2]) << 8 | p[at + 3]);
    if (marker == 0xda || marker == 0xd9 || marker == 0x01 || (marker >= 0xd0 && marker <= 0xd8) ||
        length > file.size() - at)
      break;  // the image itself, or an unknown segment
    size_t begin = out.size();
    out.insert(out.end(), p + at, p + at + length);
    at += length;
    if (marker == 0xe0 && length >= 16 && std::memcmp(&out[begin + 4], "JFIF", 5) == 0)
      out[begin + 9] = 1;
    if (marker == 0xee && length >= 16 && std::memcmp(&out[begin + 4], "Adobe", 5) == 0)
      transform = begin + 15;
    if (marker >= 0xc0 && marker <= 0xc2 && length >= 10) components = out[begin + 9];
  }
  if (transform && out[transform] > 2) out[transform] = components == 4 ? 2 : 1;
  out.insert(out.end(), p + std::min(at, file.size()), p + file.size());
  Bytes plain(out.size());
  std::memcpy(plain.data(), out.data(), out.size());
  return plain;
}

// Adobe's programs store inverted inks and mark such files by a segment before the first scan.
bool has_adobe_marker(const Bytes& file) {
  const uint8_t* p = file.data();
  for (size_t at = 2; at + 4 <= file.size();) {
    if (p[at] != 0xff || p[at + 1] == 0xff) {  // fill bytes, or data between segments
      ++at;
      continue;
    }
    uint8_t marker = p[at + 1];
    if (marker == 0xda || marker == 0xd9) return false;
    if (marker == 0x00 || marker == 0x01 || (marker >= 0xd0 && marker <= 0xd8)) {  // no content
      at += 2;
      continue;
    }
    size_t length = size_t(p[at + 2]) << 8 | p[at + 3];
    if (marker == 0xee && length >= 14 && at + 9 <= file.size() &&
        std::memcmp(p + at + 4, "Adobe", 5) == 0)
      return true;
    at += 2 + length;
  }
  return false;
}

// A progressive file of few bytes may request many passes over many pixels; this check bounds their
// product. The marker's bytes do not occur within the data of a scan.
void check_passes(const Bytes& file, int64_t width, int64_t height) {
  constexpr int64_t kMost = 40 * kMostPixels, kMostScans = 500;  // TJFLAG_LIMITSCANS
  if (width * height * kMostScans <= kMost) return;
  std::string_view all(reinterpret_cast<const char*>(file.data()), file.size());
  int64_t scans = 0;
  for (size_t at = 0; (at = all.find("\xff\xda", at)) != all.npos; at += 2) ++scans;
  if (width * height * scans > kMost)
    base::fail(Exit::data, "a JPEG image of {} x {} pixels in {} passes; that would take minutes",
               width, height, scans);
}

// Converts inks as the published decoder does: every ink absorbs its share of the light, without a
// colour profile.
Array rgb_of(const Array& inks, bool inverted) {
  Array out(device::DType::u8, {inks.shape[0], inks.shape[1], 3});
  const uint8_t* from = inks.u8();
  uint8_t* to = out.u8();
  for (int64_t i = 0, n = inks.shape[0] * inks.shape[1]; i < n; ++i, from += 4, to += 3)
    for (int c = 0; c < 3; ++c)
      to[c] = uint8_t((inverted ? from[3] * from[c] : (255 - from[3]) * (255 - from[c])) / 255);
  return out;
}

Array decode(const Bytes& file, bool precise, bool mend) {
  tjhandle handle = decompressor();
  int width = 0, height = 0, subsampling = 0, colours = 0;
  if (tjDecompressHeader3(handle, file.data(), file.size(), &width, &height, &subsampling,
                          &colours) != 0) {
    if (mend && tjGetErrorCode(handle) == TJERR_WARNING)
      return decode(with_plain_header(file), precise, false);
    base::fail(Exit::data, "broken JPEG: {}", tjGetErrorStr2(handle));
  }
  if (width < 1 || height < 1)
    base::fail(Exit::data, "broken JPEG: it ends before the image begins");
  check_image_size("JPEG", width, height);
  check_passes(file, width, height);
  bool cmyk = colours == TJCS_CMYK || colours == TJCS_YCCK;
  Array out(device::DType::u8, {height, width, cmyk ? 4 : 3});
  // Fancy upsampling is on by default. TJFLAG_LIMITSCANS bounds the passes of a progressive file.
  int flags = (precise ? TJFLAG_ACCURATEDCT : TJFLAG_FASTDCT) | TJFLAG_LIMITSCANS;
  if (tjDecompress2(handle, file.data(), file.size(), out.u8(), width, 0, height,
                    cmyk ? TJPF_CMYK : TJPF_RGB, flags) != 0) {
    std::string problem = tjGetErrorStr2(handle);
    if (tjGetErrorCode(handle) != TJERR_WARNING || !harmless(problem, file))
      base::fail(Exit::data, "broken JPEG: {}", problem);
  }
  return cmyk ? rgb_of(out, has_adobe_marker(file)) : out;
}

}  // namespace

Array decode_jpeg(const Bytes& file, bool precise) { return decode(file, precise, true); }

}  // namespace data
