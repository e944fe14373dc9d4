// SPDX-License-Identifier: Apache-2.0
// Tests text helpers, hashes, exact conversions and errors.
#include "base/text.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/narrow.hpp"
#include "base/path.hpp"
#include "base/pattern.hpp"
#include "base/plain_nan.hpp"
#include "base/pointer_file.hpp"

namespace {

using Strings = std::vector<std::string>;

TEST(Text, EditDistance) {
  EXPECT_EQ(base::edit_distance("", ""), 0);
  EXPECT_EQ(base::edit_distance("", "abc"), 3);
  EXPECT_EQ(base::edit_distance("abc", ""), 3);
  EXPECT_EQ(base::edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(base::edit_distance("batch", "bacth"), 1) << "swapped neighbours count as one edit";
  EXPECT_EQ(base::edit_distance("ab", "ba"), 1);
  EXPECT_EQ(base::edit_distance("ca", "abc"), 3) << "a swapped pair allows no edit inside";
  EXPECT_EQ(base::edit_distance("same", "same"), 0);
  for (auto [a, b] : {std::pair{"learning_rate", "lerning_rate"}, {"depth", "dept"}, {"x", "y"}})
    EXPECT_EQ(base::edit_distance(a, b), base::edit_distance(b, a));
}

TEST(Text, PathsOfShellsAndOtherLibraries) {
  for (const char* path : {"", "/a", "a/~/b", "./~", "a$b", "$", "$(x)", "./s3://b", "a:b//c",
                           "://", "3d://x", "runs/50%", "C:/x", "./$HOME/x", "/./a/$HOME", "a/$5"})
    EXPECT_EQ(base::path_problem(path), "") << path;
  for (const char* path : {"~", "~/runs", "~me/runs", "$HOME", "${HOME}/x", "$_x/y", "s3://b/c",
                           "gs://b", "http://h/x", "hdfs://h/x", "a+b.c-d://x", "file:///data",
                           "s3:/b/c", "/scratch/$USER/x", "runs/$_a", "a/x-${USER}/r"})
    EXPECT_NE(base::path_problem(path).find(fmt::format("\"{}\" ", path)), std::string::npos)
        << path;
  EXPECT_EQ(base::path_problem("$TMPDIR/x", true), "");
  EXPECT_EQ(base::path_problem("/a/$TMPDIR/x", true), "");
  EXPECT_NE(base::path_problem("/a/$X").find("this name is \"/./a/$X\""), std::string::npos);
  EXPECT_NE(base::path_problem("a/$X").find("this name is \"./a/$X\""), std::string::npos);
  // Names of files in tables have dollars in them.
  for (const char* name : {"a/$money.png", "a-${b}.png"}) EXPECT_EQ(base::name_problem(name), "");
  for (const char* name : {"~/a.png", "$HOME/a.png", "http://h/a.png"})
    EXPECT_EQ(base::name_problem(name), base::path_problem(name));
  EXPECT_NE(base::path_problem("~/x", true), "");
  ::setenv("HOME", "/home/me", 1);
  EXPECT_NE(base::path_problem("~/runs").find("write \"/home/me/runs\""), std::string::npos);
}

TEST(Text, PointersInThePlaceOfFiles) {
  EXPECT_EQ(base::pointer_problem("version https://git-lfs.github.com/spec/v1\noid sha256:00"),
            "this is a pointer of Git LFS, not the file itself: get the file with git lfs pull");
  EXPECT_NE(base::pointer_problem("/annex/objects/MD5-s3--0\n").find("git annex get"),
            std::string::npos);
  for (const char* text : {"", "version 1", "/annex/x"}) EXPECT_EQ(base::pointer_problem(text), "");
}

TEST(Text, TheSignOfNan) {
  for (const auto& [text, want] :
       {std::pair{"step=3 loss=-nan l2_grads=-nan", "step=3 loss=nan l2_grads=nan"},
        {"-nan", "nan"},
        {"(-nan, -nan): the loss is -nan.", "(nan, nan): the loss is nan."},
        {"-nan per_token", "nan per_token"},
        {"runs/a-nan/x --dir=-nano -nan.h5 b-nan", "runs/a-nan/x --dir=-nano -nan.h5 b-nan"},
        {"loss=-inf nan", "loss=-inf nan"}})
    EXPECT_EQ(base::plain_nan(text), want);
}

TEST(Text, NearestName) {
  Strings keys = {"global_batch", "micro_batch", "seed", "total_steps"};
  EXPECT_EQ(base::nearest_name("golbal_batch", keys), "global_batch");
  EXPECT_EQ(base::nearest_name("microbatch", keys), "micro_batch");
  EXPECT_EQ(base::nearest_name("sead", keys), "seed");
  EXPECT_EQ(base::nearest_name("seed", keys), "seed");
  EXPECT_EQ(base::nearest_name("frobnicate", keys), "") << "nothing is near";
  EXPECT_EQ(base::nearest_name("x", {}), "");
  // Allows one edit, and one more for every three letters.
  EXPECT_EQ(base::nearest_name("sx", Strings{"se"}), "se");
  EXPECT_EQ(base::nearest_name("xx", Strings{"se"}), "");
  EXPECT_EQ(base::nearest_name("dxx", Strings{"dir"}), "dir");
  EXPECT_EQ(base::nearest_name("xxx", Strings{"dir"}), "");
  EXPECT_EQ(base::nearest_name("stxxxd", Strings{"stoped"}), "stoped");
  EXPECT_EQ(base::nearest_name("sxxxxd", Strings{"stoped"}), "");
  EXPECT_EQ(base::nearest_name(std::string(100, 'x'), Strings{std::string(100, 'x')}),
            std::string(100, 'x'));
  EXPECT_EQ(base::nearest_name(std::string(101, 'x'), Strings{std::string(101, 'x')}), "")
      << "a name of 101 characters has no near name";
}

TEST(Text, JoinSplitTrim) {
  EXPECT_EQ(base::join(Strings{}, ", "), "");
  EXPECT_EQ(base::join(Strings{"a"}, ", "), "a");
  EXPECT_EQ(base::join(Strings{"a", "", "b"}, "|"), "a||b");
  EXPECT_EQ(base::split("a|b|c", '|'), (Strings{"a", "b", "c"}));
  EXPECT_EQ(base::split("", '|'), (Strings{""}));
  EXPECT_EQ(base::split("|a|", '|'), (Strings{"", "a", ""}));
  EXPECT_EQ(base::split("abc", '|'), (Strings{"abc"}));
  EXPECT_EQ(base::trim("  a b\t\r\n"), "a b");
  EXPECT_EQ(base::trim(" \t\n"), "");
  EXPECT_EQ(base::trim(""), "");
}

TEST(Text, QuotesWhateverItIs) {
  EXPECT_EQ(base::quoted("a\"b\\c\n\x01\x7f"), R"("a\"b\\c\n\x01\x7f")");
  EXPECT_EQ(base::quoted("\u00e9"), "\"\u00e9\"");
  EXPECT_EQ(base::quoted("a\u00e9b", 2), "\"a\"...") << "the cut is between characters";
  EXPECT_EQ(base::quoted("a\u00e9b", 3), "\"a\u00e9\"...");
  EXPECT_EQ(base::quoted("\xe5\xe5\xe5", 2), R"("\xe5\xe5"...)");
  for (const char* broken : {"\xff\xfe", "a\xc3", "\xe5\xe5\xe5\xe5", "\xf0\x9f\x98", "GIF\0@"})
    EXPECT_TRUE(base::is_utf8(base::quoted(broken))) << base::quoted(broken);
  EXPECT_EQ(base::quoted("\xe5z"), R"("\xe5z")");
}

TEST(Text, Utf8IsThatOfRfc3629) {
  for (const char* text : {"", "a", "\xc2\x80", "\u07ff", "\xe0\xa0\x80", "\xed\x9f\xbf", "\ue000",
                           "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"})
    EXPECT_TRUE(base::is_utf8(text)) << base::quoted(text);
  for (const char* text : {"\x80", "\xc3", "\xc0\xaf", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\xbd",
                           "\xed\xbf\xbf", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80",
                           "\xf5\x80\x80\x80", "\xc0\x80", "\xff", "a\xe2\x82"})
    EXPECT_FALSE(base::is_utf8(text)) << base::quoted(text);
}

TEST(Text, Numbers) {
  EXPECT_EQ(base::with_commas(0), "0");
  EXPECT_EQ(base::with_commas(999), "999");
  EXPECT_EQ(base::with_commas(1000), "1,000");
  EXPECT_EQ(base::with_commas(191669504), "191,669,504");
  EXPECT_EQ(base::with_commas(-1234567), "-1,234,567");
  EXPECT_EQ(base::with_commas(-12), "-12");
  EXPECT_EQ(base::mebibytes(0), "0");
  EXPECT_EQ(base::mebibytes(1), "1");
  EXPECT_EQ(base::mebibytes(1 << 20), "1");
  EXPECT_EQ(base::mebibytes((1 << 20) + 1), "2");
  EXPECT_EQ(base::mebibytes(int64_t{1024} << 20), "1,024");
}

TEST(Text, Durations) {
  EXPECT_EQ(base::hms(0), "0s");
  EXPECT_EQ(base::hms(59), "59s");
  EXPECT_EQ(base::hms(192), "3m12s");
  EXPECT_EQ(base::hms(8 * 3600 + 33 * 60), "8h33m");
  EXPECT_EQ(base::hms(24 * 3600 + 59 * 60), "24h59m");
  EXPECT_EQ(base::hms(26 * 3600 + 3 * 60), "1d2h3m");
  // Rounded before it is cut into units.
  EXPECT_EQ(base::hms(59.4), "59s");
  EXPECT_EQ(base::hms(60.4), "1m0s");
  EXPECT_EQ(base::hms(8 * 60 + 59.4), "8m59s");
  EXPECT_EQ(base::hms(8 * 60 + 59.6), "9m0s");
  EXPECT_EQ(base::hms(59 * 60 + 59.4), "59m59s");
  EXPECT_EQ(base::hms(59 * 60 + 59.6), "1h0m");
  EXPECT_EQ(base::hms(3600 + 59.4), "1h0m");
  EXPECT_EQ(base::hms(3600 + 59 * 60 + 59.6), "2h0m");
  EXPECT_EQ(base::hms(25 * 3600 - 0.6), "24h59m");
  EXPECT_EQ(base::hms(25 * 3600 - 0.4), "1d1h0m");
  for (double seconds = 60; seconds < 30 * 3600; seconds += 0.7)
    for (const char* impossible : {"m60s", "h60m", "d24h"})
      ASSERT_EQ(base::hms(seconds).find(impossible), std::string::npos)
          << seconds << " " << base::hms(seconds);
}

TEST(Pattern, TellsWhatIsNoneAndWhatIsTooLong) {
  EXPECT_EQ(base::pattern_problem("(.*/)?head/(kernel|bias)"), "");
  EXPECT_EQ(base::pattern_problem("a(").find("not a regular expression: "), 0u);
  // std::regex would overflow the stack.
  EXPECT_NE(base::pattern_problem(std::string(1 << 20, '(')).find("1048576 characters"),
            std::string::npos);
  EXPECT_EQ(base::pattern_problem(std::string(450, '(') + std::string(450, ')')), "");
}

TEST(Hash, KnownAnswers) {
  EXPECT_EQ(base::sha256_hex(""),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(base::sha256_hex("abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(base::xxh3("", 0), 0x2d06800538d394c2ull);
  EXPECT_EQ(base::xxh3(std::string_view("a")), base::xxh3("a", 1, 0));
  EXPECT_NE(base::xxh3("a", 1, 0), base::xxh3("a", 1, 1));
  EXPECT_NE(base::xxh3(std::string_view("ab")), base::xxh3(std::string_view("ba")));
}

TEST(Narrow, RefusesWhatDoesNotFit) {
  EXPECT_EQ(base::narrow<int>(int64_t{7}), 7);
  EXPECT_EQ(base::narrow<int>(int64_t{-2147483648ll}), -2147483647 - 1);
  EXPECT_THROW(base::narrow<int>(int64_t{1} << 31), base::Error);
  EXPECT_THROW(base::narrow<int>(uint64_t{1} << 63), base::Error);
  EXPECT_THROW(base::narrow<uint32_t>(-1), base::Error) << "sign";
  EXPECT_EQ(base::ceil_div(9, 4), 3);
  EXPECT_EQ(base::ceil_div(8, 4), 2);
  EXPECT_EQ(base::round_up(0, 64), 0);
  EXPECT_EQ(base::round_up(1, 64), 64);
  EXPECT_EQ(base::round_up(128, 64), 128);
}

TEST(Error, CarriesTheExitCodeAndTheText) {
  try {
    base::fail(base::Exit::data, "{} of {}", 3, "seven");
    FAIL();
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::Exit::data);
    EXPECT_STREQ(e.what(), "3 of seven");
  }
}

// The codes are documented and scripts depend on them.
TEST(Error, ExitCodes) {
  using base::Exit;
  EXPECT_EQ(int(Exit::finished), 0);
  EXPECT_EQ(int(Exit::internal), 1);
  EXPECT_EQ(int(Exit::config), 2);
  EXPECT_EQ(int(Exit::mesh), 3);
  EXPECT_EQ(int(Exit::data), 4);
  EXPECT_EQ(int(Exit::checkpoint), 5);
  EXPECT_EQ(int(Exit::nonfinite), 6);
  EXPECT_EQ(int(Exit::watchdog), 7);
  EXPECT_EQ(int(Exit::stopped), 8);
  EXPECT_EQ(int(Exit::requeue), 75);
}

TEST(Error, ChecksSayWhereTheProgramWas) {
  base::set_rank(3, 8);
  base::set_step(41);
  base::set_phase("forward");
  EXPECT_STREQ(base::where().phase, "forward");
  try {
    int columns = 5;
    CHECK(columns % 2 == 0, "{} columns", columns);
    FAIL();
  } catch (const base::Error& e) {
    std::string text = e.what();
    EXPECT_EQ(e.code(), base::Exit::internal);
    for (const char* part :
         {"columns % 2 == 0", "5 columns", "text_test.cpp:", "rank 3", "step 41"})
      EXPECT_NE(text.find(part), std::string::npos) << part << " is missing from: " << text;
  }
  EXPECT_NO_THROW(CHECK(true));
  base::set_rank(0, 1);
  base::set_step(0);
  base::set_phase("start");
}

}  // namespace
