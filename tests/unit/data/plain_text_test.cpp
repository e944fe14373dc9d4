// SPDX-License-Identifier: Apache-2.0
// Tests text as people's programs write it, and names that look alike.
#include "data/sources/plain_text.hpp"

#include <gtest/gtest.h>

#include "data/sources/look_alike.hpp"
#include "support.hpp"

namespace data {
namespace {

using base::Exit;
using test::expect_error;
using List = std::vector<std::string>;

TEST(PlainText, CaptionsAreOnOneLine) {
  EXPECT_EQ(on_one_line("a clock\n"), "a clock");
  EXPECT_EQ(on_one_line("\r\n two\r\n\nlines \n"), " two lines ");
  EXPECT_EQ(on_one_line("a\u0085b\u2028\u2029c\v\fd\re"), "a b c d e");
  EXPECT_EQ(on_one_line("caf\u00e9 \u201cx\u201d"), "caf\u00e9 \u201cx\u201d");
  EXPECT_EQ(on_one_line("\xC2"), "\xC2") << "a cut character stays";
  EXPECT_EQ(on_one_line("\n\r"), "");
  EXPECT_EQ(on_one_line(" \t "), " \t ");
}

TEST(PlainText, ListsHaveOneEntryPerLine) {
  test::TemporaryDirectory dir;
  auto entries = [&](const std::string& text) {
    test::write_file(dir / "list", text);
    return read_list(dir / "list", "names");
  };
  EXPECT_EQ(entries("\xEF\xBB\xBF"
                    "cat\r\n\r\n big dog \n"),
            (List{"cat", "big dog"}));
  EXPECT_EQ(entries("cat\rdog"), (List{"cat", "dog"}));
  EXPECT_EQ(entries("\xEF\xBB\xBF\xEF\xBB\xBF"
                    "cat\n\xEF\xBB\xBF"
                    "dog\n"),
            (List{"cat", "dog"}))
      << "marks of files that were joined";
  for (const std::string& text : {std::string("c\0a\0t\0\n\0", 8), std::string("\0c\0a\0t", 6)})
    expect_error(Exit::data, {"list' is UTF-16 text: save it as UTF-8"}, [&] { entries(text); });
  expect_error(Exit::data, {"list' is UTF-32 text"}, [&] { entries(std::string("c\0\0\0", 4)); });
  expect_error(Exit::data, {"list' holds a zero byte at byte 3: names are UTF-8 text"},
               [&] { entries(std::string("cat\0\ndog", 8)); });
  EXPECT_EQ(entries("\xEF\xBB\xBF"), List{});
  expect_error(Exit::data, {"list': ", "pointer of Git LFS"},
               [&] { entries("version https://git-lfs.github.com/spec/v1\n"); });
  expect_error(Exit::data, {"list' is UTF-16 text: save it as UTF-8"},
               [&] { entries("\xFF\xFE.."); });
  for (const std::string& mark : {std::string("\xFF\xFE\0\0", 4), std::string("\0\0\xFE\xFF", 4)})
    expect_error(Exit::data, {"list' is UTF-32 text: save it as UTF-8"}, [&] { entries(mark); });
  expect_error(Exit::data, {"has 4 bytes; a file of names may have at most 3"}, [&] {
    entries("cats");
    read_text_file(dir / "list", 3, "names");
  });
}

TEST(PlainText, WholeNumbers) {
  for (const char* text : {"7", " 7\n", "7.0", "7.", "7.000"}) EXPECT_EQ(whole_number(text), 7);
  EXPECT_EQ(whole_number("-1"), -1);
  EXPECT_EQ(whole_number("-2147483648"), std::numeric_limits<int32_t>::min());
  for (const char* text : {"", ".", ".0", "7.5", "7.05", "7x", "+7", "2147483648", "1_0", "nan"})
    EXPECT_FALSE(whole_number(text)) << text;
}

TEST(PlainText, NumbersThatJsonLacks) {
  EXPECT_EQ(strict_json(R"({"a": NaN, "b": [-Infinity,Infinity], "NaN": "Infinity \" NaN"})"),
            R"({"a": null, "b": [null,null], "NaN": "Infinity \" NaN"})");
  EXPECT_EQ(strict_json(R"("cut NaN \)"), R"("cut NaN \)");
  EXPECT_EQ(strict_json("{}"), "{}");
  const std::string long_number(400, '9');
  EXPECT_EQ(strict_json("{\"a\": 1e999, \"b\": [-1E+999,1e-999, 1e300], \"c\": " + long_number +
                        ", \"1e999\": \"-1e999 " + long_number + "\"}"),
            "{\"a\": null, \"b\": [null,1e-999, 1e300], \"c\": \"" + long_number +
                "\", \"1e999\": \"-1e999 " + long_number + "\"}");
  EXPECT_EQ(strict_json("[12345678901234567890123, -1234567890123456789, 123456789012345678]"),
            "[\"12345678901234567890123\", \"-1234567890123456789\", 123456789012345678]");
  EXPECT_EQ(strict_json("[0.1234567890123456789, NaN, -7, 1.5e3]"),
            "[0.1234567890123456789, null, -7, 1.5e3]");
  EXPECT_EQ(strict_json(R"(["\ud83d\ude00", "\uD83D.", "\udE00", "\\ud800", "-", -1])"),
            R"(["\ud83d\ude00", "\ufffe\uffff\ufffe.", "\ufffe\uffff\ufffe", "\\ud800", "-", -1])");
}

TEST(LookAlike, CapitalsAndNormalForms) {
  for (const auto& [a, b] : std::vector<std::pair<const char*, const char*>>{
           {"IMG_1.JPG", "img_1.jpg"},
           {"caf\u00e9.png", "cafe\u0301.png"},
           {"CAF\u00e9", "cafe\u0301"},
           {"\u1ebf", "\u00ea\u0301"},
           {"\u1ebf", "e\u0302\u0301"},
           {"\u30ac\u30b9", "\u30ab\u3099\u30b9"},
           {"\ud55c\uae00", "\u1112\u1161\u11ab\u1100\u1173\u11af"},
           {"caf\u00e9.png", "caf\xe9.png"}}) {
    EXPECT_TRUE(look_alike(a, b)) << a << " " << b;
    EXPECT_TRUE(look_alike(b, a)) << a << " " << b;
  }
  for (const auto& [a, b] :
       std::vector<std::pair<const char*, const char*>>{{"a.png", "a.png"},
                                                        {"a.png", "b.png"},
                                                        {"cafe.png", "cafe\u0301.png"},
                                                        {"caf\u00e9", "caf\u00e8"},
                                                        {"caf\u00e9", "cafe\u0301s"}})
    EXPECT_FALSE(look_alike(a, b)) << a << " " << b;
}

}  // namespace
}  // namespace data
