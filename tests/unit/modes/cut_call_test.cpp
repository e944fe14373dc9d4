// SPDX-License-Identifier: Apache-2.0
// Tests what a call of --mode eval takes over from one that was cut off.
#include "modes/cut_call.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "tests/unit/silent_comm.hpp"

namespace modes {
namespace {

namespace fs = std::filesystem;

class CutCallTest : public testing::Test {
 protected:
  CutCallTest() : folder_(fs::temp_directory_path() / fmt::format("cut_call_{}", ::getpid())) {
    fs::create_directories(folder_);
  }
  ~CutCallTest() override { fs::remove_all(folder_); }
  std::string out() const { return (folder_ / "values.jsonl").string(); }

  // Makes an evaluation whose row is `row`.
  void make(CutCall& call, const std::string& key, const std::string& row) {
    const auto journal = call.open(key, "eval=x step=1", {});
    EXPECT_TRUE(fs::exists(out() + ".partial/" + key));
    call.add(key, row, *journal);
    EXPECT_FALSE(fs::exists(out() + ".partial/" + key)) << "its journal is of no more use";
  }

  fs::path folder_;
  SilentComm one_;
};

TEST_F(CutCallTest, RowsAreTakenOverOnceEach) {
  {
    CutCall cut(one_, out());
    EXPECT_TRUE(cut.keeps());
    EXPECT_EQ(cut.take("a"), "");
    make(cut, "a", "{\"x\": 1}");
    make(cut, "b", "{\"x\": 2, \"text\": \"c d\"}");
    make(cut, "a", "{\"x\": 3}");
    EXPECT_EQ(cut.take("a"), "") << "rows of this call are not taken over";
  }
  CutCall next(one_, out());
  EXPECT_EQ(next.take("b"), "{\"x\": 2, \"text\": \"c d\"}");
  EXPECT_EQ(next.take("b"), "");
  EXPECT_EQ(next.take("a"), "{\"x\": 1}") << "the same evaluation was asked for twice";
  EXPECT_EQ(next.take("a"), "{\"x\": 3}");
  EXPECT_EQ(next.take("a"), "");
  EXPECT_EQ(next.take(""), "");
  next.remove();
  EXPECT_FALSE(fs::exists(out() + ".partial"));
  EXPECT_EQ(CutCall(one_, out()).take("b"), "");
}

TEST_F(CutCallTest, ATornLineIsNoRow) {
  {
    CutCall cut(one_, out());
    make(cut, "a", "{\"x\": 1}");
    make(cut, "b", "{\"x\": 2}");
  }
  const std::string rows = out() + ".partial/rows";
  fs::resize_file(rows, fs::file_size(rows) - 1);
  {
    CutCall next(one_, out());
    EXPECT_EQ(next.take("b"), "");
    EXPECT_EQ(next.take("a"), "{\"x\": 1}");
    make(next, "c", "{\"x\": 3}");
  }
  CutCall last(one_, out());
  EXPECT_EQ(last.take("c"), "{\"x\": 3}") << "the row behind the torn line is whole";
  EXPECT_EQ(last.take("b"), "");
}

TEST_F(CutCallTest, WithoutAFileNothingIsKept) {
  CutCall none(one_, "");
  EXPECT_FALSE(none.keeps());
  EXPECT_EQ(none.take("a"), "");
  none.remove();
  EXPECT_TRUE(fs::is_empty(folder_));
}

}  // namespace
}  // namespace modes
