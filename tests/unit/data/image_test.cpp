// SPDX-License-Identifier: Apache-2.0
// Tests decoders beyond the recorded files: bit depths, interlacing, WebP, and broken files of
// every kind.
#include <gif_lib.h>
#include <gtest/gtest.h>
#include <png.h>
#include <sys/resource.h>
#include <turbojpeg.h>
#include <webp/encode.h>

#include "data/images/decode.hpp"
#include "data/images/encode.hpp"
#include "data/images/resize.hpp"
#include "support.hpp"
#include "tests/unit/recorded.hpp"

namespace data {
namespace {

using base::Exit;
using test::bytes_of;
using test::expect_error;

std::string golden(const std::string& name) {
  return test::read_file(tests::source_file("tests/golden/images/") + name);
}

struct PngFormat {
  int type, depth, interlace = PNG_INTERLACE_NONE;
  bool transparent = false;
  int texts = 0;  // texts of 7.5 MB each, compressed
};

// `rows` are packed as the format requires.
std::string png_file(const PngFormat& f, uint32_t width, const std::vector<std::string>& rows) {
  std::string out;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &out,
      [](png_structp p, png_bytep data, size_t n) {
        static_cast<std::string*>(png_get_io_ptr(p))->append(reinterpret_cast<char*>(data), n);
      },
      nullptr);
  png_set_IHDR(png, info, width, uint32_t(rows.size()), f.depth, f.type, f.interlace,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_color palette[4] = {{1, 2, 3}, {10, 20, 30}, {100, 110, 120}, {255, 0, 7}};
  png_byte alpha[2] = {0, 128};
  png_color_16 clear{};
  if (f.type == PNG_COLOR_TYPE_PALETTE) {
    png_set_PLTE(png, info, palette, 4);
    if (f.transparent) png_set_tRNS(png, info, alpha, 2, nullptr);
  } else if (f.transparent) {
    png_set_tRNS(png, info, nullptr, 0, &clear);
  }
  std::string words(7'500'000, 'x');
  std::vector<png_text> texts(size_t(f.texts), png_text{});
  for (png_text& t : texts) {
    t.compression = PNG_TEXT_COMPRESSION_zTXt;
    t.key = const_cast<char*>("Comment");
    t.text = words.data();
  }
  png_set_text(png, info, texts.data(), f.texts);
  png_write_info(png, info);
  std::vector<png_bytep> pointers;
  for (const std::string& r : rows)
    pointers.push_back(reinterpret_cast<png_bytep>(const_cast<char*>(r.data())));
  png_write_image(png, pointers.data());
  png_write_end(png, nullptr);
  png_destroy_write_struct(&png, &info);
  return out;
}

std::vector<int> pixels(const Array& a) { return {a.u8(), a.u8() + a.count()}; }

TEST(Png, DepthsAndColours) {
  auto decoded = [](const PngFormat& f, uint32_t width, const std::vector<std::string>& rows) {
    return pixels(decode_image(bytes_of(png_file(f, width, rows)), false));
  };
  using V = std::vector<int>;
  EXPECT_EQ(decoded({PNG_COLOR_TYPE_GRAY, 16}, 2, {{"\x12\xff\xab\x00", 4}}),
            (V{0x12, 0x12, 0x12, 0xab, 0xab, 0xab}));  // low byte lost
  EXPECT_EQ(decoded({PNG_COLOR_TYPE_RGB, 16}, 1, {{"\x01\x80\x02\x90\x03\xff", 6}}), (V{1, 2, 3}));
  EXPECT_EQ(decoded({PNG_COLOR_TYPE_GRAY, 1}, 3, {"\xa0"}),
            (V{255, 255, 255, 0, 0, 0, 255, 255, 255}));
  EXPECT_EQ(decoded({PNG_COLOR_TYPE_GRAY, 4}, 2, {"\x5f"}), (V{0x55, 0x55, 0x55, 255, 255, 255}));
  EXPECT_EQ(decoded({PNG_COLOR_TYPE_GRAY_ALPHA, 8}, 1, {{"\x40\x00", 2}}), (V{0x40, 0x40, 0x40}));
  // Alpha is dropped, not blended.
  EXPECT_EQ(decoded({PNG_COLOR_TYPE_RGBA, 8}, 1, {{"\x0a\x0b\x0c\x00", 4}}), (V{10, 11, 12}));
  EXPECT_EQ(decoded({PNG_COLOR_TYPE_PALETTE, 2}, 4, {"\x1b"}),
            (V{1, 2, 3, 10, 20, 30, 100, 110, 120, 255, 0, 7}));
  EXPECT_EQ(decoded({PNG_COLOR_TYPE_PALETTE, 2, PNG_INTERLACE_NONE, true}, 4, {"\x1b"}),
            (V{1, 2, 3, 10, 20, 30, 100, 110, 120, 255, 0, 7}));
  EXPECT_EQ(decoded({PNG_COLOR_TYPE_GRAY, 8, PNG_INTERLACE_NONE, true}, 2, {{"\x00\x07", 2}}),
            (V{0, 0, 0, 7, 7, 7}));
}

TEST(Png, Interlaced) {
  std::vector<std::string> rows;
  for (int y = 0; y < 11; ++y) {
    rows.emplace_back();
    for (int x = 0; x < 13 * 3; ++x) rows.back() += char(y * 17 + x * 3);
  }
  EXPECT_EQ(pixels(decode_png(
                bytes_of(png_file({PNG_COLOR_TYPE_RGB, 8, PNG_INTERLACE_ADAM7}, 13, rows)))),
            pixels(decode_png(bytes_of(png_file({PNG_COLOR_TYPE_RGB, 8}, 13, rows)))));
}

TEST(Png, CutOrDamaged) {
  std::string whole = golden("e_rgb_37x53.png");
  for (size_t size : {size_t{9}, size_t{30}, size_t{60}, whole.size() / 2, whole.size() - 13})
    expect_error(Exit::data, {"broken PNG", "ends early"},
                 [&] { decode_png(bytes_of(whole.substr(0, size))); });
  for (size_t at : {size_t{20}, size_t{29}, whole.size() / 2}) {
    std::string bad = whole;
    bad[at] ^= 0x10;
    expect_error(Exit::data, {"broken PNG"}, [&] { decode_png(bytes_of(bad)); });
  }
}

// Browsers and Pillow read such files: all rows are present, and their chunk is checked.
TEST(Png, WithoutAnEnd) {
  const std::string whole = golden("e_rgb_37x53.png");
  const std::vector<int> expected = pixels(decode_png(bytes_of(whole)));
  for (const std::string& end : {std::string(), whole.substr(whole.size() - 12, 11),
                                 std::string("some other words"), std::string(100, '\0')})
    EXPECT_EQ(pixels(decode_png(bytes_of(whole.substr(0, whole.size() - 12) + end))), expected);
  std::vector<std::string> rows(9, std::string(7, 'x'));
  const PngFormat format{PNG_COLOR_TYPE_GRAY, 8, PNG_INTERLACE_ADAM7};
  const std::string interlaced = png_file(format, 7, rows);
  EXPECT_EQ(pixels(decode_png(bytes_of(interlaced.substr(0, interlaced.size() - 12)))),
            std::vector<int>(9 * 7 * 3, 'x'));
}

// Old writers declare a smaller window than their data needs.
TEST(Png, WindowTooSmall) {
  std::vector<std::string> rows;
  uint32_t random = 1;
  for (int y = 0; y < 16; ++y) {
    rows.emplace_back();
    for (int x = 0; x < 96; ++x)
      rows.back() += char((random = random * 1664525 + 1013904223) >> 24);
  }
  for (int y = 0; y < 16; ++y) rows.push_back(rows[size_t(y)]);  // 1,552 bytes back
  std::string file = png_file({PNG_COLOR_TYPE_RGB, 8}, 32, rows);
  const std::vector<int> expected = pixels(decode_png(bytes_of(file)));
  const size_t data = file.find("IDAT") + 4;
  const auto size = [&](size_t at) {
    return size_t(uint8_t(file[at])) << 8 | uint8_t(file[at + 1]);
  };
  file[data] = 0x08;  // 256 bytes
  file[data + 1] = 0x1d;
  const size_t end = data + size(data - 6);
  uint32_t crc = 0xffffffff;
  for (size_t i = data - 4; i < end; ++i) {
    crc ^= uint8_t(file[i]);
    for (int k = 0; k < 8; ++k) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  for (int k = 0; k < 4; ++k) file[end + size_t(k)] = char(~crc >> (24 - 8 * k));
  EXPECT_EQ(pixels(decode_png(bytes_of(file))), expected);
}

TEST(Png, TooLarge) {
  std::string bad = golden("e_rgb_37x53.png");
  // The header claims 40,000 x 40,000, with a right checksum.
  uint8_t side[4] = {0, 0, 0x9c, 0x40};
  std::memcpy(bad.data() + 16, side, 4);
  std::memcpy(bad.data() + 20, side, 4);
  uint32_t crc = 0xffffffff;
  for (size_t i = 12; i < 29; ++i) {
    crc ^= uint8_t(bad[i]);
    for (int k = 0; k < 8; ++k) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  for (int k = 0; k < 4; ++k) bad[size_t(29 + k)] = char(~crc >> (24 - 8 * k));
  expect_error(Exit::data, {"PNG image of 40000 x 40000", "at most 100000000"},
               [&] { decode_image(bytes_of(bad), false); });
  expect_error(Exit::data, {"JPEG image of 65000 x 65000"},
               [] { check_image_size("JPEG", 65000, 65000); });
}

TEST(Png, TextsFillNoMemory) {
  auto peak_mb = [] {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss >> 10;
  };
  PngFormat format{PNG_COLOR_TYPE_GRAY, 8};
  format.texts = 60;
  Bytes file = bytes_of(png_file(format, 1, {"\x40"}));
  EXPECT_LT(file.size(), size_t(1) << 20);
  long before = peak_mb();
  EXPECT_EQ(pixels(decode_png(file)), (std::vector<int>{0x40, 0x40, 0x40}));
  EXPECT_LT(peak_mb() - before, 100);
}

std::string jpeg_file(int colours, bool progressive = false) {
  std::vector<uint8_t> pixel(size_t(48 * 40 * colours));
  for (size_t i = 0; i < pixel.size(); ++i) pixel[i] = uint8_t(i * 7 % 251 / 2 + i / 64);
  tjhandle t = tjInitCompress();
  unsigned char* out = nullptr;
  unsigned long size = 0;
  EXPECT_EQ(tjCompress2(t, pixel.data(), 48, 0, 40, colours == 4 ? TJPF_CMYK : TJPF_RGB, &out,
                        &size, TJSAMP_444, 90, progressive ? TJFLAG_PROGRESSIVE : 0),
            0);
  std::string file(reinterpret_cast<char*>(out), size);
  tjFree(out);
  tjDestroy(t);
  return file;
}

TEST(Jpeg, CutOrDamaged) {
  for (bool progressive : {false, true}) {
    std::string whole = jpeg_file(3, progressive);
    EXPECT_EQ(decode_jpeg(bytes_of(whole), false).shape, (std::vector<int64_t>{40, 48, 3}));
    for (size_t size : {size_t{3}, size_t{100}, whole.size() / 2, whole.size() - 200})
      expect_error(Exit::data, {"broken JPEG"},
                   [&] { decode_jpeg(bytes_of(whole.substr(0, size)), false); });
  }
  std::string bad = jpeg_file(3);
  for (size_t i = bad.size() / 2; i < bad.size() / 2 + 40; ++i) bad[i] = char(0xff);
  expect_error(Exit::data, {"broken JPEG"}, [&] { decode_jpeg(bytes_of(bad), false); });
}

TEST(Jpeg, HarmlessWarnings) {
  std::string whole = jpeg_file(3);
  Array expected = decode_jpeg(bytes_of(whole), false);
  // Many good files have bytes between the last data and the end marker, and after it.
  std::string extra = whole.substr(0, whole.size() - 2) + "junk" + whole.substr(whole.size() - 2) +
                      std::string(5, '\0');
  EXPECT_EQ(pixels(decode_jpeg(bytes_of(extra), false)), pixels(expected));
  // These files have a header with a version from the future, an unknown colour transform of Adobe,
  // and bytes between segments.
  size_t jfif = whole.find("JFIF");
  ASSERT_NE(jfif, whole.npos);
  std::string version = whole, between = whole, adobe = whole;
  version[jfif + 5] = 3;
  size_t second = jfif - 4 + 2 + (uint8_t(whole[jfif - 2]) << 8 | uint8_t(whole[jfif - 1]));
  between.insert(second, 3, '\0');
  adobe.replace(jfif - 4, second - (jfif - 4),
                std::string("\xff\xee\0\x0e"
                            "Adobe\0\x64\0\0\0\0\x09",
                            16));
  for (const std::string& odd : {version, between, adobe}) {
    EXPECT_EQ(pixels(decode_jpeg(bytes_of(odd), false)), pixels(expected));
    for (size_t size : {odd.size() / 2, odd.size() - 200})  // cuts are still noticed
      expect_error(Exit::data, {"broken JPEG"},
                   [&] { decode_jpeg(bytes_of(odd.substr(0, size)), false); });
  }
}

// tjCompress2 writes inks as YCCK with Adobe's marker; without the marker the four components are
// plain CMYK.
TEST(Jpeg, InksBecomeRgb) {
  std::string adobe = jpeg_file(4), plain = adobe;
  size_t at = plain.find("\xff\xee");
  ASSERT_NE(at, plain.npos);
  plain.erase(at, 2 + (size_t(uint8_t(plain[at + 2])) << 8 | uint8_t(plain[at + 3])));
  for (const std::string& file : {adobe, plain}) {
    std::vector<uint8_t> inks(48 * 40 * 4);
    tjhandle t = tjInitDecompress();
    ASSERT_EQ(tjDecompress2(t, reinterpret_cast<const uint8_t*>(file.data()), file.size(),
                            inks.data(), 48, 0, 40, TJPF_CMYK, TJFLAG_FASTDCT),
              0);
    tjDestroy(t);
    std::vector<int> expected;
    for (size_t i = 0; i < inks.size(); i += 4)
      for (size_t c = 0; c < 3; ++c)
        expected.push_back(file == adobe ? inks[i + 3] * inks[i + c] / 255
                                         : (255 - inks[i + 3]) * (255 - inks[i + c]) / 255);
    EXPECT_EQ(pixels(decode_image(bytes_of(file), false)), expected);
  }
  EXPECT_NE(pixels(decode_image(bytes_of(adobe), false)),
            pixels(decode_image(bytes_of(plain), false)));
}

// Cameras store an orientation flag. The published decoder ignores it, so the stored pixels count.
TEST(Jpeg, RotationTagIsIgnored) {
  std::string whole = jpeg_file(3);
  const std::string tiff("II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0", 26);
  std::string exif = std::string("Exif\0\0", 6) + tiff;
  std::string segment = std::string("\xff\xe1\0", 3) + char(exif.size() + 2) + exif;
  std::string turned = whole.substr(0, 2) + segment + whole.substr(2);
  EXPECT_EQ(decode_image(bytes_of(turned), false).shape, (std::vector<int64_t>{40, 48, 3}));
  EXPECT_EQ(pixels(decode_image(bytes_of(turned), false)),
            pixels(decode_image(bytes_of(whole), false)));
}

TEST(Jpeg, HugeHeaderIsRefusedUnread) {
  std::string bad = jpeg_file(3);
  size_t at = bad.find("\xff\xc0");
  ASSERT_NE(at, bad.npos);
  for (size_t i = at + 5; i < at + 9; ++i) bad[i] = char(0xf0);
  expect_error(Exit::data, {"JPEG image of 61680 x 61680", "at most 100000000"},
               [&] { decode_image(bytes_of(bad), false); });
}

TEST(Jpeg, ManyPassesOverManyPixelsAreRefused) {
  std::string bad = jpeg_file(3, true);
  size_t at = bad.find("\xff\xc2");
  ASSERT_NE(at, bad.npos);
  for (size_t side : {at + 5, at + 7}) {
    bad[side] = 0x27;
    bad[side + 1] = 0x10;
  }  // 10,000
  for (int i = 0; i < 40; ++i) bad += "\xff\xda";
  expect_error(Exit::data, {"10000 x 10000 pixels in", "passes"},
               [&] { decode_jpeg(bytes_of(bad), false); });
}

TEST(Jpeg, PreciseDiffersFromFast) {
  Bytes file = bytes_of(golden("b_444_40x56.jpg"));
  EXPECT_NE(pixels(decode_jpeg(file, false)), pixels(decode_jpeg(file, true)));
}

TEST(Webp, DecodesAndDropsAlpha) {
  std::vector<uint8_t> rgba(size_t(20 * 16 * 4));
  for (size_t i = 0; i < rgba.size(); ++i) rgba[i] = uint8_t(i % 4 == 3 ? 1 + i % 200 : i * 5);
  uint8_t* out = nullptr;
  size_t size = WebPEncodeLosslessRGBA(rgba.data(), 20, 16, 80, &out);
  std::string file(reinterpret_cast<char*>(out), size);
  WebPFree(out);
  Array a = decode_image(bytes_of(file), false);
  ASSERT_EQ(a.shape, (std::vector<int64_t>{16, 20, 3}));
  for (int64_t i = 0; i < 320; ++i)
    for (int64_t c = 0; c < 3; ++c) ASSERT_EQ(a.u8()[i * 3 + c], rgba[size_t(i * 4 + c)]);
  for (size_t cut : {size_t{20}, file.size() / 2, file.size() - 1})
    expect_error(Exit::data, {"broken WebP"},
                 [&] { decode_image(bytes_of(file.substr(0, cut)), false); });
}

// Writes one image on a canvas with giflib: 4 colours, the last one transparent if `transparent`.
std::string gif_file(int left, int top, int width, int height, bool interlaced, bool transparent,
                     int second_side = 0) {
  std::string out;
  int problem = 0;
  GifFileType* gif = EGifOpen(
      &out,
      [](GifFileType* g, const GifByteType* p, int n) {
        static_cast<std::string*>(g->UserData)->append(reinterpret_cast<const char*>(p), size_t(n));
        return n;
      },
      &problem);
  EGifSetGifVersion(gif, true);
  GifColorType colours[4] = {{1, 2, 3}, {10, 20, 30}, {100, 110, 120}, {255, 0, 7}};
  ColorMapObject* map = GifMakeMapObject(4, colours);
  EXPECT_EQ(EGifPutScreenDesc(gif, 20, 20, 8, 0, map), GIF_OK);
  if (transparent) {
    const uint8_t control[4] = {1, 0, 0, 3};
    EXPECT_EQ(EGifPutExtension(gif, GRAPHICS_EXT_FUNC_CODE, 4, control), GIF_OK);
  }
  auto image = [&](int x, int y, int w, int h) {
    EXPECT_EQ(EGifPutImageDesc(gif, x, y, w, h, interlaced, nullptr), GIF_OK);
    std::vector<int> order;
    if (interlaced)
      for (auto [first, every] : {std::pair{0, 8}, {4, 8}, {2, 4}, {1, 2}})
        for (int row = first; row < h; row += every) order.push_back(row);
    else
      for (int row = 0; row < h; ++row) order.push_back(row);
    for (int row : order) {
      std::vector<uint8_t> line(static_cast<size_t>(w));
      for (int i = 0; i < w; ++i) line[size_t(i)] = uint8_t((row + i) % 4);
      EXPECT_EQ(EGifPutLine(gif, line.data(), w), GIF_OK);
    }
  };
  image(left, top, width, height);
  if (second_side) image(0, 0, second_side, second_side);
  EGifCloseFile(gif, nullptr);
  GifFreeMapObject(map);
  return out;
}

TEST(Gif, FirstFrameOnItsCanvas) {
  Array plain = decode_image(bytes_of(gif_file(0, 0, 12, 10, false, false)), false);
  ASSERT_EQ(plain.shape, (std::vector<int64_t>{10, 12, 3}));
  EXPECT_EQ(std::vector<int>(plain.u8(), plain.u8() + 12),
            (std::vector<int>{1, 2, 3, 10, 20, 30, 100, 110, 120, 255, 0, 7}));
  EXPECT_EQ(pixels(decode_image(bytes_of(gif_file(0, 0, 12, 10, true, false)), false)),
            pixels(plain));
  Array clear = decode_image(bytes_of(gif_file(0, 0, 12, 10, false, true)), false);
  EXPECT_EQ(std::vector<int>(clear.u8() + 9, clear.u8() + 12), (std::vector<int>{0, 0, 0}));
  // A small first frame on the canvas of a larger second one has black around it.
  std::string two = gif_file(3, 2, 5, 4, false, false, 9);
  Array small = decode_image(bytes_of(two), false);
  ASSERT_EQ(small.shape, (std::vector<int64_t>{9, 9, 3}));
  for (int64_t y = 0; y < 9; ++y)
    for (int64_t x = 0; x < 9; ++x) {
      bool inside = y >= 2 && y < 6 && x >= 3 && x < 8;
      int red[4] = {1, 10, 100, 255};
      EXPECT_EQ(small.u8()[(y * 9 + x) * 3], inside ? red[(y - 2 + x - 3) % 4] : 0)
          << y << " " << x;
    }
  for (size_t cut : {size_t{7}, size_t{15}, size_t{30}, two.size() / 3})
    expect_error(Exit::data, {"broken GIF"},
                 [&] { decode_image(bytes_of(two.substr(0, cut)), false); });
  // The first frame is whole.
  EXPECT_EQ(decode_image(bytes_of(two.substr(0, two.size() - 5)), false).shape[0], 9);
}

TEST(Gif, HugeFrameIsRefusedUnread) {
  std::string bad = gif_file(0, 0, 12, 10, false, false);
  size_t at = bad.find(std::string("\x2c\0\0\0\0\x0c\0\x0a\0", 9));
  ASSERT_NE(at, bad.npos);
  for (size_t i = at + 5; i < at + 9; ++i) bad[i] = char(0xff);
  expect_error(Exit::data, {"GIF image of 65535 x 65535"},
               [&] { decode_image(bytes_of(bad), false); });
}

TEST(Image, OtherFormatsAreNamed) {
  expect_error(Exit::data, {"TIFF", "convert"},
               [] { decode_image(bytes_of("II*\x08 0123456789"), false); });
  expect_error(Exit::data, {"BMP"}, [] { decode_image(bytes_of("BM0123456789abcdef"), false); });
  expect_error(Exit::data, {"empty file"}, [] { decode_image(Bytes(), false); });
  expect_error(Exit::data, {"not an image", "<html>"},
               [] { decode_image(bytes_of("<html>not found</html>"), false); });
}

// Computes the definition in the order of cappa.md 8.2, one float operation at a time.
TEST(Resize, EqualsTheDefinition) {
  for (const auto& sizes : {std::array<int64_t, 5>{7, 9, 3, 5, 13},
                            {1, 1, 3, 4, 3},
                            {30, 17, 1, 30, 8},
                            {12, 11, 4, 3, 29},
                            {37, 50, 3, 22, 24},
                            {5, 64, 3, 9, 31}}) {
    const int64_t h = sizes[0], w = sizes[1], c = sizes[2], to_h = sizes[3], to_w = sizes[4];
    Array in(device::DType::u8, {h, w, c});
    for (int64_t i = 0; i < in.count(); ++i) in.u8()[i] = uint8_t(i * 97 + i * i % 31);
    Array out = resize_bilinear(in, to_h, to_w);
    auto tap = [](int64_t i, int64_t n, int64_t to_n, int64_t& low, int64_t& high) {
      volatile float scale = float(n) / float(to_n), half = float(i) + 0.5f, scaled = half * scale,
                     centre = scaled - 0.5f;
      low = std::max(int64_t(std::floor(float(centre))), int64_t{0});
      high = std::min(int64_t(std::ceil(float(centre))), n - 1);
      return float(centre) - std::floor(float(centre));
    };
    auto mix = [](float a, float b, float t) {
      volatile float d = b - a, p = d * t, s = a + p;
      return float(s);
    };
    for (int64_t y = 0; y < to_h; ++y)
      for (int64_t x = 0; x < to_w; ++x)
        for (int64_t k = 0; k < c; ++k) {
          int64_t y0, y1, x0, x1;
          float ty = tap(y, h, to_h, y0, y1), tx = tap(x, w, to_w, x0, x1);
          auto at = [&](int64_t yy, int64_t xx) { return float(in.u8()[(yy * w + xx) * c + k]); };
          float top = mix(at(y0, x0), at(y0, x1), tx), bottom = mix(at(y1, x0), at(y1, x1), tx);
          ASSERT_EQ(out.u8()[(y * to_w + x) * c + k], uint8_t(mix(top, bottom, ty)))
              << y << " " << x << " " << k;
        }
  }
}

TEST(Png, that_we_encode_has_the_pixels) {
  const int64_t height = 5, width = 7;
  std::vector<uint8_t> pixels(size_t(height * width * 3));
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = uint8_t(i * 37);
  const Array colour = decode_png(bytes_of(png_of(pixels.data(), height, width, 3)));
  EXPECT_EQ(colour.shape, (std::vector<int64_t>{height, width, 3}));
  EXPECT_EQ(std::vector<uint8_t>(colour.u8(), colour.u8() + pixels.size()), pixels);
  const Array grey = decode_png(bytes_of(png_of(pixels.data(), height, width, 1)));
  for (int64_t i = 0; i < height * width; ++i) EXPECT_EQ(grey.u8()[3 * i], pixels[size_t(i)]);
}

}  // namespace
}  // namespace data
