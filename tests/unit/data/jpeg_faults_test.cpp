// SPDX-License-Identifier: Apache-2.0
// Tests JPEG files that other decoders read silently although libjpeg-turbo warns of them.
#include <gtest/gtest.h>
#include <turbojpeg.h>

#include "base/text.hpp"
#include "data/images/decode.hpp"
#include "support.hpp"
#include "tests/unit/recorded.hpp"

namespace data {
namespace {

using base::Exit;
using test::bytes_of;
using test::expect_error;

std::vector<int> decoded(const std::string& file) {
  const Array a = decode_image(bytes_of(file), true);
  return {a.u8(), a.u8() + a.count()};
}

void refused(const std::string& file, const std::string& why = "") {
  expect_error(Exit::data, {"broken JPEG", why}, [&] { decode_image(bytes_of(file), true); });
}

std::string jpeg(int flags = 0, int restart_rows = 0) {
  std::vector<uint8_t> pixels(size_t(48 * 40 * 3));
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = uint8_t(i * 7 % 251 / 2 + i / 64);
  if (restart_rows) ::setenv("TJ_RESTART", std::to_string(restart_rows).c_str(), 1);
  tjhandle t = tjInitCompress();
  unsigned char* out = nullptr;
  unsigned long size = 0;
  EXPECT_EQ(tjCompress2(t, pixels.data(), 48, 0, 40, TJPF_RGB, &out, &size, TJSAMP_420, 90, flags),
            0);
  ::unsetenv("TJ_RESTART");
  std::string file(reinterpret_cast<char*>(out), size);
  tjFree(out);
  tjDestroy(t);
  return file;
}

// Pillow's pixels, as a hash (FNV-1a). The names are the sampling factors of the components.
TEST(JpegFaults, AnySamplingFactors) {
  for (auto [name, expected] : {std::pair{"1x1_2x2_2x2.jpg", uint64_t{0x6af26760e55db3a4}},
                                {"1x4_1x1_1x1.jpg", uint64_t{0xcca09e05b741dff3}},
                                {"2x2_2x1_1x1.jpg", uint64_t{0x7e74235747bad678}},
                                {"3x1_1x1_1x1.jpg", uint64_t{0xfc6196f5ba905098}},
                                {"4x2_1x1_1x1.jpg", uint64_t{0x9ceef8811cefbe6b}}}) {
    uint64_t hash = 0xcbf29ce484222325;
    for (int v :
         decoded(test::read_file(tests::source_file(fmt::format("tests/data/jpeg/{}", name)))))
      hash = (hash ^ uint64_t(v)) * 0x100000001b3;
    EXPECT_EQ(hash, expected) << name;
  }
}

// Parameters of progressive scans mean nothing in a sequential file.
TEST(JpegFaults, ParametersOfTheScan) {
  const std::string whole = jpeg();
  const size_t at = whole.find("\xff\xda");
  ASSERT_NE(at, whole.npos);
  for (auto [first, last, bits] : {std::tuple{0, 0, 0}, {1, 63, 0}, {0, 63, 0x21}, {0, 255, 0}}) {
    std::string odd = whole;
    odd[at + 11] = char(first);
    odd[at + 12] = char(last);
    odd[at + 13] = char(bits);
    EXPECT_EQ(decoded(odd), decoded(whole)) << first << " " << last << " " << bits;
    refused(odd.substr(0, odd.size() - 200));
    odd.resize(odd.size() - 2);  // a second fault, which the library does not name
    EXPECT_EQ(decoded(odd + "trailer"), decoded(whole));
  }
}

// Cameras and phones append notes, with and without an end marker.
TEST(JpegFaults, TrailersWithAndWithoutAnEnd) {
  for (int restart_rows : {0, 1}) {
    const std::string whole = jpeg(0, restart_rows), end = "\xff\xd9", note(1718, 'n');
    EXPECT_EQ(whole.find("\xff\xd0") != whole.npos, restart_rows == 1);
    const std::string data = whole.substr(0, whole.size() - 2);
    for (const std::string& trailer :
         {end + note, note, note + end, note + end + note, "junk" + end + "more",
          std::string("\xff\xfe\0\4no", 6), "junk" + std::string("\xff\xfe\0\2", 4), whole,
          end + whole, std::string("\xff\xff\xd9", 3), std::string(40, '\0'), std::string()}) {
      SCOPED_TRACE(base::quoted(trailer, 20));
      EXPECT_EQ(decoded(data + trailer), decoded(whole));
      for (size_t cut : {size_t{8}, size_t{60}, data.size() / 3})
        if (trailer.size() < 40) refused(data.substr(0, data.size() - cut) + trailer);
    }
  }
}

TEST(JpegFaults, LostDataIsNoTrailer) {
  const std::string whole = jpeg(0, 1), end = "\xff\xd9";
  // A copy that was cut and filled up decodes without a warning.
  const std::string plain = jpeg();
  refused(plain.substr(0, plain.size() / 2) + std::string(plain.size() * 2, '\0'), "zeros");
  // The first warning names junk before the end, and the second one lost rows.
  const size_t restart = whole.rfind("\xff\xd1");
  ASSERT_NE(restart, whole.npos);
  refused(whole.substr(0, restart) + "junk" + end);
  std::string renamed = whole;
  renamed[restart + 1] = char(0xd3);
  refused(renamed);
}

// Without its end, a file of several scans may lack some, or a part of the last one.
TEST(JpegFaults, ProgressiveWithoutAnEnd) {
  const std::string whole = jpeg(TJFLAG_PROGRESSIVE);
  EXPECT_EQ(decoded(whole + "trailer"), decoded(whole));
  const std::string data = whole.substr(0, whole.size() - 2);
  EXPECT_EQ(decoded(data), decoded(whole));
  for (size_t cut : {1, 2, 8, 30}) refused(data.substr(0, data.size() - cut));
  refused(data + std::string(1000, 'n'));
  refused(data + std::string(1000, '\0'));
  int scans = 0;
  for (size_t at = whole.find("\xff\xda"); at != whole.npos; at = whole.find("\xff\xda", at + 1)) {
    if (scans++ == 0) continue;
    // The tables before a scan belong to that scan.
    const size_t end = std::min(at, whole.rfind("\xff\xc4", at));
    refused(whole.substr(0, end), "scans with finer detail are missing");
    refused(whole.substr(0, at), "scans with finer detail are missing");
  }
  EXPECT_GT(scans, 5);
}

// Every thread keeps its decoder, which must forget a header that it could not read.
TEST(JpegFaults, ABrokenHeaderDoesNotSpoilTheNextFile) {
  const std::string whole = jpeg();
  const std::vector<int> pixels = decoded(whole);
  const size_t frame = whole.find("\xff\xc0");
  ASSERT_NE(frame, whole.npos);
  auto with = [&](size_t at, const std::string& bytes) {
    return std::string(whole).replace(frame + at, bytes.size(), bytes);
  };
  const std::string twelve_bits = with(4, "\x0c"), lossless = with(1, "\xc3");
  for (const auto& [file, why] : std::vector<std::pair<std::string, std::string>>{
           {twelve_bits, "precision 12"},
           {lossless, "Unsupported JPEG process"},
           {with(5, "\xff\xff\xff\xff"), "65500"},
           {with(2, std::string(2, '\0')), "marker length"},
           {whole.substr(0, 2) + whole, "two SOI markers"},
           {whole.substr(0, frame + 3), ""}}) {
    SCOPED_TRACE(why);
    refused(file, why);
    EXPECT_EQ(decoded(whole), pixels);
    refused(file, why);
  }
}

// Bytes between two markers of the header are skipped. The pixels are decoded nevertheless.
TEST(JpegFaults, BytesBetweenTheMarkersOfAHeader) {
  for (int flags : {0, TJFLAG_PROGRESSIVE}) {
    std::string whole = jpeg(flags), file = whole;
    const size_t frame = whole.find(flags ? "\xff\xc2" : "\xff\xc0");
    ASSERT_NE(frame, whole.npos);
    file.insert(frame, "junk");
    EXPECT_EQ(decoded(file), decoded(whole)) << flags;
    EXPECT_EQ(decoded(file.substr(0, file.size() - 2)), decoded(whole)) << flags;
  }
}

// The decoder of arithmetic coding does not notice a cut.
TEST(JpegFaults, ArithmeticCodingWithoutAnEnd) {
  for (const char* name : {"arithmetic.jpg", "arithmetic_progressive.jpg"}) {
    const std::string whole =
        test::read_file(tests::source_file(fmt::format("tests/data/jpeg/{}", name)));
    EXPECT_EQ(decoded(whole).size(), size_t(48 * 40 * 3));
    for (size_t cut : {2, 3, 200})
      refused(whole.substr(0, whole.size() - cut), "ends without an end marker");
  }
}

}  // namespace
}  // namespace data
