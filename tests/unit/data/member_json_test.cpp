// SPDX-License-Identifier: Apache-2.0
// Tests captions in JSON members.
#include "data/sources/member_json.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/text.hpp"

namespace {

using data::texts_in_json;

std::string problem(const std::string& text) {
  try {
    texts_in_json(text, "captions");
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::Exit::data);
    return e.what();
  }
  return "";
}

TEST(MemberJson, Texts) {
  EXPECT_EQ(texts_in_json(R"({"id": 7, "captions": ["a", "b \u00e9"], "more": {"captions": 3}})",
                          "captions"),
            (data::Texts{"a", "b \u00e9"}));
  EXPECT_EQ(texts_in_json(R"({"caption": "one"})", "caption"), data::Texts{"one"});
  // Labels are whole numbers; other keys may have NaN; a caption is on one line.
  EXPECT_EQ(texts_in_json(R"({"label": 2, "score": NaN})", "label"), data::Texts{"2"});
  EXPECT_EQ(texts_in_json(R"({"label": [2.0, false, "x\ny\n"], "score": -Infinity})", "label"),
            (data::Texts{"2", "0", "x y"}));
  // Python writes and reads numbers of any size.
  EXPECT_EQ(texts_in_json(R"({"label": 2, "area": 1e999})", "label"), data::Texts{"2"});
  EXPECT_EQ(texts_in_json(R"({"id": 12345678901234567890123})", "id"),
            data::Texts{"12345678901234567890123"});
  // JavaScript cuts characters in halves: such a text is not UTF-8, and harms no other key.
  EXPECT_EQ(texts_in_json(R"({"caption": "ok", "title": "\ud83d"})", "caption"), data::Texts{"ok"});
  EXPECT_FALSE(base::is_utf8(texts_in_json(R"({"caption": "\ud83d"})", "caption").at(0)));
  // U+FFFE itself is valid text, as UTF-8 or escaped.
  EXPECT_EQ(texts_in_json("{\"caption\": [\"a\xEF\xBF\xBE\", \"\\ufffe\"]}", "caption"),
            (data::Texts{"a\xEF\xBF\xBE", "\xEF\xBF\xBE"}));
}

TEST(MemberJson, OfFourMebibytes) {
  std::string text = R"({"captions": "a"})";
  text.resize(4 << 20, ' ');
  EXPECT_EQ(problem(text), "");
  EXPECT_NE(problem(text + " ").find("at most"), std::string::npos);
}

TEST(MemberJson, WhatIsNoTextIsRefused) {
  for (auto& [text, fragment] : std::vector<std::pair<std::string, std::string>>{
           {"", "cannot be read"},
           {"{\"captions\": [\"a\"", "cannot be read"},
           {"[\"a\"]", "has no \"captions\""},
           {"{}", "has no \"captions\""},
           {"{\"more\": {\"captions\": \"a\"}}", "has no \"captions\""},
           {"{\"captions\": 3.5}", "is number"},
           {"{\"captions\": NaN}", "is null"},
           {"{\"captions\": [1e300]}", "number among"},
           {"{\"captions\": []}", "empty list"},
           {"{\"captions\": [\"a\", null]}", "null among"},
           {"{\"captions\": \"\xff\"}", "cannot be read: it is not UTF-8"},
           {std::string("{\0\"\0a\0", 6), "cannot be read: it is UTF-16 text"},
           {"{\"x\": " + std::string(1000, '[') + "}", "too deep"},
           {std::string(5 << 20, ' '), "at most"}})
    EXPECT_NE(problem(text).find(fragment), std::string::npos) << fragment << ": " << problem(text);
}

TEST(MemberJson, Names) {
  EXPECT_EQ(data::split_member_field("png").extensions, std::vector<std::string>{"png"});
  EXPECT_EQ(data::split_member_field("jpg; jpeg").extensions,
            (std::vector<std::string>{"jpg", "jpeg"}));
  EXPECT_EQ(data::split_member_field("jpg;jpeg").text(), ".jpg or .jpeg");
  EXPECT_EQ(data::split_member_field("png").key, "");
  EXPECT_EQ(data::split_member_field("PNG; Jpg;jpg").text(), ".png or .jpg");
  EXPECT_EQ(data::split_member_field("jpg;jpg").text(), ".jpg or .jpg") << "refused by its caller";
  EXPECT_EQ(data::split_member_field("JSON:Key").extensions, std::vector<std::string>{"json"});
  EXPECT_EQ(data::split_member_field("JSON:Key").key, "Key");
  EXPECT_EQ(data::split_member_field("json:a.b:c").extensions, std::vector<std::string>{"json"});
  EXPECT_EQ(data::split_member_field("json:a.b:c").key, "a.b:c");
}

}  // namespace
