// SPDX-License-Identifier: Apache-2.0
// Tests tables of images and captions: headers, quotes, tabs, refusals.
#include "data/sources/caption_table.hpp"

#include <gtest/gtest.h>

#include "support.hpp"

namespace data {
namespace {

using base::Exit;
using test::expect_error;

std::vector<std::string> rows(const std::string& path, const std::string& text,
                              const TableColumns& columns = {}, bool expect_header = true) {
  std::vector<std::string> out;
  const TableForm form = read_caption_table(
      path, text, columns, [&](std::string_view image, std::string_view caption, int64_t line) {
        out.push_back(fmt::format("{}|{}|{}", line, image, caption));
      });
  EXPECT_EQ(form.header, expect_header) << text;
  return out;
}
using List = std::vector<std::string>;

TEST(CaptionTable, WithoutAHeader) {
  EXPECT_EQ(rows("t.tsv", "a.jpg\tone\nb.jpg\ttwo\tand a tab \r\n\n\r\nc.jpg\t\na.jpg\t\"x\"\"", {},
                 false),
            (List{"1|a.jpg|one", "2|b.jpg|two\tand a tab ", "5|c.jpg|", "6|a.jpg|\"x\"\""}));
  EXPECT_EQ(rows("t.csv", "a.jpg,one\r\nb.jpg,\"two, and\"\n", {}, false),
            (List{"1|a.jpg|one", "2|b.jpg|two, and"}));
  // A caption that is the name of a column does not make a row a header.
  EXPECT_EQ(rows("t.tsv", "a.jpg\tcaption\n", {}, false), List{"1|a.jpg|caption"});
  EXPECT_EQ(rows("t.tsv", "image\ta photo\n", {}, false), List{"1|image|a photo"});
  EXPECT_EQ(rows("t.tsv", "", {}, false), List{});
}

TEST(CaptionTable, LinesOfJson) {
  EXPECT_EQ(rows("t.jsonl", R"({"file_name": "a.jpg", "text": "one\ntwo", "id": 7})"
                            "\r\n\n"
                            R"({"text":"","file_name":"b.jpg"})"),
            (List{"1|a.jpg|one two", "3|b.jpg|"}));
  EXPECT_EQ(rows("T.JSONL", "{\"image\": \"a.jpg\", \"kind\": 17}\n", {"image", "kind"}),
            List{"1|a.jpg|17"});
  EXPECT_EQ(rows("t.jsonl",
                 "{\"image\": \"a\", \"text\": 7.0, \"score\": NaN, \"x\": -Infinity}\n"
                 "{\"image\": \"b\", \"text\": true}"),
            (List{"1|a|7", "2|b|1"}));
  EXPECT_EQ(rows("t.jsonl", "{\"image\": \"a\", \"text\": 1234567890123456789012, \"x\": 1e999}"),
            List{"1|a|1234567890123456789012"});
  EXPECT_EQ(rows("t.jsonl", ""), List{});
  for (const auto& [text, part] :
       {std::pair{"[1]", "line 1: is not a JSON object: \"[1]\" (a list; write each row"},
        {"[{\"image\": \"a\", \"text\": \"b\"},", "(a list; write each row"},
        {"{\"image\": \"a\", \"text\": \"caf\xe9\"}", "(not UTF-8 text; save the file as UTF-8)"},
        {"{\"image\": \"a\", \"text\": \"b\",}", "line 1, column 28"},
        {"{\"image\": \"a\", \"text\": \"b\"}\n{\"image\": ", "line 2: is not a JSON object"},
        {"{\"image\": \"a\"}", "no \"caption, captions"},
        {"{\"image\": \"a\", \"text\": \"b\", \"title\": \"c\"}", "choose with caption_column"},
        {"{\"image\": \"a\", \"text\": NaN}", "\"text\" is null, neither"},
        {"{\"image\": \"a\", \"text\": 1.5}",
         "\"text\" is number, neither a text nor a whole number"}})
    expect_error(Exit::data, {"'t.jsonl'", part}, [&, t = text] { rows("t.jsonl", t); });
  expect_error(Exit::data, {"no \"kind\" (caption_column)", "\"image\""}, [&] {
    rows("t.jsonl", "{\"image\": \"a\"}", {"image", "kind"});
  });
}

TEST(CaptionTable, HeadersByTheirNames) {
  for (const std::string& image : image_column_names())
    for (const std::string& caption : caption_column_names()) {
      EXPECT_EQ(rows("t.tsv", image + "\t" + caption + "\na.jpg\tone\n"), List{"2|a.jpg|one"});
      EXPECT_EQ(rows("t.csv", "id," + caption + ",url," + image + "\n7,one,http://x,a.jpg\n"),
                List{"2|a.jpg|one"});
    }
  EXPECT_EQ(rows("T.TSV", " FilePath\tTitle \r\na.jpg\tone\n"), List{"2|a.jpg|one"});
  EXPECT_EQ(rows("t.csv", "\"path\",\"text\"\n\"a.jpg\",\n"), List{"2|a.jpg|"});
}

TEST(CaptionTable, HeadersByKeys) {
  const std::string text = "pic,blurb,title\na.jpg,one,two\n";
  EXPECT_EQ(rows("t.csv", text, {"pic", "blurb"}), List{"2|a.jpg|one"});
  EXPECT_EQ(rows("t.csv", text, {"pic", ""}), List{"2|a.jpg|two"});
  EXPECT_EQ(rows("t.csv", "file,text,alt\na,b,c\n", {"", "alt"}), List{"2|a|c"});
  auto bad = [](const std::string& in, const TableColumns& columns, List parts) {
    expect_error(Exit::data, parts, [&] { rows("t.csv", in, columns); });
  };
  bad(text, {"picture", ""},
      {"'t.csv' line 1", "no column \"picture\" (image_column)", "\"pic\", \"blurb\", \"title\""});
  bad(text, {"", "blurb"}, {"no column is called image, images", "set image_column"});
  bad("pic,blurb\n", {"pic", ""}, {"no column is called caption", "set caption_column"});
  bad("image,title,text\n", {}, {"\"title\" and \"text\"", "choose with caption_column"});
  bad("file,image,text\n", {}, {"\"file\" and \"image\"", "choose with image_column"});
  bad("text,b\n", {"text", ""}, {"both \"text\""});
}

TEST(CaptionTable, Quotes) {
  EXPECT_EQ(rows("t.csv",
                 "image,caption\n"
                 "a.jpg,\"says \"\"hi\"\", twice\"\n"
                 "\"b, c.jpg\",\"two\r\nlines\n\nmore\"\r\n"
                 "d.jpg,5\" wide\r"
                 "e.jpg,\"\"\n"
                 "f.jpg,\" \t\""),
            (List{"2|a.jpg|says \"hi\", twice", "3|b, c.jpg|two lines more", "7|d.jpg|5\" wide",
                  "8|e.jpg|", "9|f.jpg| \t"}));
  auto bad = [](const std::string& in, List parts) {
    expect_error(Exit::data, parts, [&] { rows("t.csv", in); });
  };
  bad("image,caption\na.jpg,\"one\nb.jpg,two\n", {"line 2", "never closed"});
  bad("image,caption\na.jpg,\"one\"x\n", {"line 2", "\"x\"", "closing quote"});
}

// A writer of CSV with tabs puts quotes around cells and doubles those within. Other quotes are
// text.
TEST(CaptionTable, QuotesOfTsv) {
  auto tsv = [](const std::string& text) { return rows("t.tsv", text, {}, false); };
  EXPECT_EQ(tsv("a\t\"on a \"\"sign\"\"\"\nb\t\"a 12\"\" record\"\n"),
            (List{"1|a|on a \"sign\"", "2|b|a 12\" record"}));
  EXPECT_EQ(tsv("\"a\"\t\"all\"\r\n\"b\"\t\"\"\r\n"), (List{"1|a|all", "2|b|"}));
  EXPECT_EQ(tsv("a\t\"a\ttab\"\nb\t\"two\nlines\"\nc\tthree\ttabs"),
            (List{"1|a|a\ttab", "2|b|two lines", "4|c|three\ttabs"}));
  EXPECT_EQ(tsv("a\t\"open\" sign\nb\t\"closed\"\n"),
            (List{"1|a|\"open\" sign", "2|b|\"closed\""}));
  EXPECT_EQ(tsv("a\t\"never closed\nb\ttwo\"\n"), (List{"1|a|\"never closed", "2|b|two\""}));
  EXPECT_EQ(tsv("a\t5\" wide\nb\t\"x\"\n"), (List{"1|a|5\" wide", "2|b|\"x\""}));
  // Only a writer of CSV doubles quotes, so the other rows do not matter.
  EXPECT_EQ(tsv("a\t\"open\" sign\nb\t\"says \"\"hi\"\"\ttwice\"\n"),
            (List{"1|a|\"open\" sign", "2|b|says \"hi\"\ttwice"}));
  EXPECT_EQ(read_caption_table("t.tsv", "a\t\"x\"\n", {}, [](auto...) {}).unquoted_cells, 1);
  EXPECT_EQ(read_caption_table("t.tsv", "a\t\"x\n", {}, [](auto...) {}).unquoted_cells, 0);
}

TEST(CaptionTable, LineBreaksInCaptions) {
  EXPECT_EQ(rows("t.tsv", "a\tone\rline\r\nb\ttwo\u2028lines\r\n", {}, false),
            (List{"1|a|one line", "2|b|two lines"}));
  EXPECT_EQ(rows("t.tsv", "path\ttitle\ra\tone\rb\ttwo"), (List{"2|a|one", "3|b|two"}));
  EXPECT_EQ(rows("t.csv", "path,title\na,\"\none\nline\n\"\n"), List{"2|a|one line"});
  expect_error(Exit::data, {"line 1", "a carriage return with a tab after it"},
               [] { rows("t.tsv", "a\tone\rb\ttwo\n"); });
}

TEST(CaptionTable, MarksOfJoinedFiles) {
  const std::string mark = "\xEF\xBB\xBF";
  EXPECT_EQ(rows("t.tsv", "a\tone\n" + mark + "b\ttwo\n" + mark, {}, false),
            (List{"1|a|one", "2|b|two"}));
  EXPECT_EQ(rows("t.csv", mark + "a,one\n" + mark + "\"b\",two", {}, false),
            (List{"1|a|one", "2|b|two"}));
  const std::string one = R"({"image": "a", "text": "one"})";
  EXPECT_EQ(rows("t.jsonl", one + "\n" + mark + one), (List{"1|a|one", "2|a|one"}));
}

TEST(CaptionTable, RowsOfAnotherLength) {
  auto bad = [](const char* path, const std::string& in, List parts) {
    expect_error(Exit::data, parts, [&] { rows(path, in); });
  };
  bad("t.csv", "image,caption\na.jpg\n", {"'t.csv' line 2", "1 cell,", "the header's 2"});
  bad("t.csv", "image,caption\na.jpg,one, two\n", {"line 2", "3 cells"});
  bad("t.csv", "a.jpg,one, two\n", {"line 1", "3 cells", "without a header", "image_column"});
  bad("t.tsv", "caption\tpath\none\ttab\ta.jpg\n", {"line 2", "3 cells", "the header's 2"});
  bad("t.tsv", "path\tcaption\na.jpg\n", {"line 2", "1 cell,"});
  bad("t.tsv", "a.jpg\tx\nb.jpg\n", {"line 2", "no tab", "b.jpg"});
  // The separator differs from the one that the file name implies.
  bad("t.csv", "image;caption\na.jpg;x\n", {"line 1", "semicolons", "with commas"});
  bad("t.csv", "image\tcaption\na.jpg\tx\n", {"line 1", "call the file .tsv"});
  bad("t.tsv", "image,caption\na.jpg,x\n", {"line 1", "no tab", "call the file .csv"});
  // In the last column a tab belongs to the caption.
  EXPECT_EQ(rows("t.tsv", "path\tcaption\na.jpg\tone\ttwo\n"), List{"2|a.jpg|one\ttwo"});
}

}  // namespace
}  // namespace data
