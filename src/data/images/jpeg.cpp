// SPDX-License-Identifier: Apache-2.0
// Decodes JPEG through libjpeg-turbo.
#include <turbojpeg.h>

#include <charconv>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "base/span.hpp"
#include "data/images/decode.hpp"
#include "data/images/jpeg_plain.hpp"

namespace data {
namespace {

using base::Exit;

struct Destroy {
  void operator()(void* handle) const { tjDestroy(handle); }
};

thread_local std::unique_ptr<void, Destroy> own_decompressor;

// Keeps one decompressor per thread: creating one costs more than decoding a thumbnail.
tjhandle decompressor() {
  if (!own_decompressor) own_decompressor.reset(tjInitDecompress());
  if (!own_decompressor) base::fail(Exit::internal, "libjpeg-turbo: {}", tjGetErrorStr2(nullptr));
  return own_decompressor.get();
}

constexpr std::string_view kExtraneous = " extraneous bytes before marker";

// Bytes before the end marker are harmless if the file ends with that marker. This is for files of
// several scans, which plain_jpeg does not cut.
bool harmless(std::string_view warning, const Bytes& file) {
  if (warning.find(kExtraneous) == warning.npos) return false;
  std::string_view all(reinterpret_cast<const char*>(file.data()), file.size());
  size_t last = all.find_last_not_of(std::string_view("\0\r\n ", 4));
  return last != all.npos && last >= 1 && all.substr(last - 1, 2) == "\xff\xd9";
}

// Returns how many bytes the warning counts before the end marker, or 0.
size_t bytes_before_end(std::string_view warning) {
  size_t at = warning.find(kExtraneous), begin = warning.rfind(' ', at == 0 ? 0 : at - 1);
  size_t count = 0;
  if (at == warning.npos || begin == warning.npos || !warning.ends_with("0xd9")) return 0;
  std::from_chars(warning.data() + begin + 1, warning.data() + at, count);
  return count;
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

// Returns false for a header that cannot be read. The library reports unusual sampling factors as
// an error, because it has no name for them. But it then knows the size, and can decode the file.
// It can also decode files that it only warns of.
bool read_header(tjhandle handle, const Bytes& file, int& width, int& height, int& colours) {
  int subsampling = 0;
  return tjDecompressHeader3(handle, file.data(), file.size(), &width, &height, &subsampling,
                             &colours) == 0 ||
         (width > 0 && height > 0 && colours >= 0 &&
          (tjGetErrorCode(handle) == TJERR_WARNING ||
           std::string_view(tjGetErrorStr2(handle)).find("subsampling") != std::string_view::npos));
}

// Decodes into `out` and returns the library's problem, or "". The library continues after
// "warnings". Most of them mean lost pixels, so each is a problem.
std::string try_to_decode(const Bytes& file, bool precise, Array& out) {
  tjhandle handle = decompressor();
  int width = 0, height = 0, colours = -1;
  if (!read_header(handle, file, width, height, colours)) {
    std::string problem = tjGetErrorStr2(handle);
    // After such an error TurboJPEG 2 would continue with this header when it reads the next file.
    own_decompressor.reset();
    return problem;
  }
  if (width < 1 || height < 1) return "it ends before the image begins";
  check_image_size("JPEG", width, height);
  check_passes(file, width, height);
  bool cmyk = colours == TJCS_CMYK || colours == TJCS_YCCK;
  out.reset(device::DType::u8, {height, width, cmyk ? 4 : 3});
  // Fancy upsampling is on by default. TJFLAG_LIMITSCANS bounds the passes of a progressive file.
  int flags = (precise ? TJFLAG_ACCURATEDCT : TJFLAG_FASTDCT) | TJFLAG_LIMITSCANS;
  if (tjDecompress2(handle, file.data(), file.size(), out.u8(), width, 0, height,
                    cmyk ? TJPF_CMYK : TJPF_RGB, flags) != 0)
    return tjGetErrorStr2(handle);
  return "";
}

// Decodes a file that has faults, if it has all its pixels. The library keeps only the first
// warning, so harmless faults are repaired and the file is decoded again.
std::string try_to_mend(const Bytes& file, bool precise, Array& out) {
  std::string problem;
  size_t extra = 0;
  for (int tries = 0; tries < 4; ++tries) {
    const PlainJpeg plain = plain_jpeg(file, extra);
    problem = try_to_decode(plain.bytes, precise, out);
    if (!plain.lacks.empty()) return plain.lacks;
    if (problem.empty() && plain.zeros) return "it has zeros at its end instead of an end marker";
    if (!plain.one_scan) return !plain.ended && harmless(problem, plain.bytes) ? "" : problem;
    const size_t more = bytes_before_end(problem);
    if (more == 0) break;
    extra += more;
  }
  return problem;
}

}  // namespace

Array decode_jpeg(const Bytes& file, bool precise) {
  const base::Span span("decode a JPEG", base::SpanKind::load);
  Array out;
  if (!try_to_decode(file, precise, out).empty())
    if (std::string problem = try_to_mend(file, precise, out); !problem.empty())
      base::fail(Exit::data, "broken JPEG: {}", problem);
  if (out.shape[2] == 4) return rgb_of(out, has_adobe_marker(file));
  return out;
}

}  // namespace data
