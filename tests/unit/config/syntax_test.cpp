// SPDX-License-Identifier: Apache-2.0
// Tests text that is not TOML, and files that are not decks.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "recipe.hpp"

namespace {

using recipe::at;
using recipe::good;
using recipe::next_line;
using recipe::parse;
using recipe::problems;
using recipe::with;
using recipe::with_line;
using Lines = std::vector<std::string>;

TEST(Syntax, SeveralErrorsAtOnceWithOtherProblems) {
  EXPECT_EQ(problems(R"(format = 1
format = 2
[train]
data = coco
total_steps = 1k
global_batch = 0
shufle = "none"
[data.coco]
path = "\.x"
)"),
            (Lines{
                "run.toml:2: syntax: key-value pair: cannot redefine existing integer 'format'; "
                "each key and each table may "
                "be given "
                "only once",
                "run.toml:4: syntax: value: could not determine value type; text needs quotes; "
                "booleans are true and false",
                "run.toml:5: syntax: decimal integer: expected digit, saw 'k'; text needs quotes",
                "run.toml:6: train.global_batch: 0 is out of range: must be >= 1 examples",
                "run.toml:7: train.shufle: unknown key; did you mean shuffle?",
                "run.toml:9: syntax: string: unknown escape sequence '\\.'; use 'single quotes' "
                "for text with backslashes",
            }));
}

TEST(Syntax, NoGuessesAfterABrokenHeaderOrAnOpenBracket) {
  EXPECT_EQ(problems("format = 1\n[train\nfoo = 1\n"),
            Lines{at(2, "syntax: table header: expected ']', saw '\\n'")});
  EXPECT_EQ(problems("format = 1\n[train]\nstart_steps = [1, 2\nglobal_batch = 3\n"),
            Lines{at(4,
                     "syntax: array: expected comma or closing ']', saw 'g'; is a ] or a comma "
                     "missing?; the statement "
                     "begins in line 3")});
  EXPECT_EQ(
      problems("format = 1\n[train]\ndata = '''a\nfoo = 3\n"),
      Lines{at(4,
               "syntax: literal string: encountered end-of-file; the statement begins in line 3")});
  EXPECT_EQ(problems("format = 1\n[train]\n[train]\nx = 1\n"),
            Lines{at(3,
                     "syntax: table header: cannot redefine existing table 'train'; each key and "
                     "each table may be "
                     "given only once")});
}

TEST(Syntax, ABrokenHeaderDoesNotHideLaterErrors) {
  EXPECT_EQ(problems("[train\nx = 1\ny = 1.\n"),
            (Lines{at(1, "syntax: table header: expected ']', saw '\\n'"),
                   at(3, "syntax: floating-point: expected decimal digit, saw '\\n'")}));
}

TEST(Syntax, AnOpenBracketHidesNothingAboveIt) {
  EXPECT_EQ(problems("[train]\nshufle = 1\nstart_steps = [1, 2\n[log]\nnothing = 1\n"),
            (Lines{at(2, "train.shufle: unknown key; did you mean shuffle?"),
                   at(4,
                      "syntax: array: expected comma or closing ']', saw '['; is a ] or a comma "
                      "missing?; the "
                      "statement begins in line 3")}));
}

TEST(Syntax, AfterAnErrorCrossChecksStaySilent) {
  auto r = parse("format = 1\n[train]\nglobal_batch = 8k\n");
  EXPECT_EQ(r->problems(),
            Lines{at(3, "syntax: decimal integer: expected digit, saw 'k'; text needs quotes")});
  r->deck->error("train.global_batch", "is 0");
  EXPECT_EQ(r->problems().size(), 1u);
  auto broken = parse("[train\n");
  broken->deck->error("train.global_batch", "is 0");
  EXPECT_EQ(broken->problems().size(), 1u);
  EXPECT_FALSE(broken->deck->has("train"));
  EXPECT_EQ(broken->deck->resolved(), "");
  EXPECT_TRUE(broken->deck->flat().empty());
}

TEST(Syntax, AStatementOverSeveralLinesIsLeftOutWhole) {
  EXPECT_EQ(problems(with_line(
                5, "global_batch = 64\nstart_steps = [\n 1, # one\n 2 3,\n]\nshufle = 'none'")),
            (Lines{at(8,
                      "syntax: array: expected comma or closing ']', saw '3'; is a ] or a comma "
                      "missing?; the "
                      "statement begins in line 6"),
                   at(10, "train.shufle: unknown key; did you mean shuffle?")}));
}

TEST(Syntax, CharactersOutsideAscii) {
  const std::string problem =
      "syntax: a character that is not ASCII outside quotes; text needs straight \" or ' quotes";
  EXPECT_EQ(problems(with_line(3,
                               "data = \xe2\x80\x9c"
                               "coco\xe2\x80\x9d\nshufle = 1")),
            (Lines{at(3, problem), at(4, "train.shufle: unknown key; did you mean shuffle?")}));
  EXPECT_EQ(with("gr\xc3\xb6"
                 "sse = 1\n"),
            Lines{at(next_line, problem)});
  EXPECT_EQ(with("[log]\nlevels = [\n1,\n\xc2\xa0"
                 "2]\n"),
            Lines{at(next_line + 3, problem)});
  // Characters beyond ASCII are accepted in text, comments and quoted keys, and after a byte order
  // mark.
  auto r =
      parse("\xef\xbb\xbf" + std::string(good) + "# \xc3\xa9\n[env]\n\"\xc3\xa9\" = '\xc3\xa9'\n");
  EXPECT_EQ(r->problems(), Lines{});
  EXPECT_EQ(r->root.env.at("\xc3\xa9"), "\xc3\xa9");
}

TEST(Syntax, HeadersWithoutAName) {
  for (const char* header : {"[", "[\n", "[]", "[[", "[[]]", "[ =]", "[[ .a]]", "[ [a]]", "[#"})
    EXPECT_EQ(problems(header), Lines{at(1, "syntax: a table header has no name; write [name]")})
        << header;
}

TEST(Syntax, BracketsThatDoNotMatch) {
  EXPECT_EQ(with("x = [}\n"), Lines{at(next_line, "syntax: found } where ] should close")});
  EXPECT_EQ(with("x = [1, {a = 1]}\n"),
            Lines{at(next_line, "syntax: found ] where } should close")});
}

TEST(Syntax, BytesThatAreNotText) {
  EXPECT_EQ(problems(std::string("format = 1\nx = \"\xff\xfe\"\n")).size(), 1u);
  EXPECT_EQ(problems(std::string("format = 1\n\0", 12)).size(), 1u);
}

// ---- files

class DeckFile : public ::testing::Test {
 protected:
  std::string path_ = ::testing::TempDir() + "config_deck_" + std::to_string(::getpid()) + ".toml";
  void TearDown() override { std::filesystem::remove(path_); }
  void write(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }
  static std::string refusal(const std::string& path) {
    try {
      config::read_deck(path, {});
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::Exit::config);
      return e.what();
    }
    return "";
  }
};

TEST_F(DeckFile, IsReadAsItIs) {
  write("format = 1\r\n# \xc3\xa9\n");
  config::DeckSource source = config::read_deck(path_, {"a=1"});
  EXPECT_EQ(source.path, path_);
  EXPECT_EQ(source.text, "format = 1\r\n# \xc3\xa9\n");
  EXPECT_EQ(source.overrides, std::vector<std::string>{"a=1"});
}

TEST_F(DeckFile, UnreadableIsAConfigurationError) {
  EXPECT_EQ(refusal(path_), "cannot read deck " + path_ + ": No such file or directory");
  EXPECT_EQ(refusal(::testing::TempDir()),
            "cannot read deck " + ::testing::TempDir() + ": Is a directory");
}

// Windows editors call UTF-16 "Unicode".
TEST_F(DeckFile, Utf16IsNamed) {
  for (const std::string& text : {std::string("\xFF\xFEx\0", 4), std::string("\xFE\xFF\0x", 4)}) {
    write(text);
    EXPECT_EQ(refusal(path_), "deck " + path_ + " is UTF-16 text: save it as UTF-8");
  }
}

TEST_F(DeckFile, TooLargeIsRefused) {
  write(std::string(size_t{4} << 20, '\n'));
  EXPECT_EQ(refusal(path_), "");
  write(std::string((size_t{4} << 20) + 1, '\n'));
  EXPECT_EQ(refusal(path_),
            "deck " + path_ + " has more than 4 MiB, the limit for a deck: is it the right file?");
}

}  // namespace
