// SPDX-License-Identifier: Apache-2.0
// Compares the keys that may change when a run continues with the recorded list: every key of every
// table and kind. A change of the list changes what a user may do to a running experiment, so it
// must be intended. To record the list again, read the difference that the test prints, then run
//   TRAINER_RECORD=1 build/tests/test_train --gtest_filter='ResumeClasses.*'
// and commit tests/data/resume_classes.txt.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/unit/recorded.hpp"
#include "train/recipe.hpp"

namespace train {
namespace {

const std::string kRecorded = tests::source_file("tests/data/resume_classes.txt");

// Returns the lines of --describe, reduced to "class key {kinds}".
std::set<std::string> described() {
  Recipe recipe;
  std::istringstream text(config::describe([&](config::Table& t) { recipe.bind(t); }, ""));
  std::set<std::string> out;
  for (std::string line; std::getline(text, line);) {
    if (!line.starts_with("  ") || line.starts_with("  the keys of ")) continue;
    const std::string key = line.substr(2, line.find(' ', 2) - 2);
    const char* kind = line.find("(never changes on resume)") != line.npos ? "never"
                       : line.find(" [R] ") != line.npos                   ? "may"
                                                                           : "ask";
    const size_t kinds = line.back() == '}' ? line.rfind(" {") : line.npos;
    out.insert(std::string(kind) + " " + key + (kinds == line.npos ? "" : line.substr(kinds)));
  }
  return out;
}

std::string missing(const std::set<std::string>& from, const std::set<std::string>& in, char sign) {
  std::string out;
  for (const std::string& line : in)
    if (!from.count(line)) out += std::string(1, sign) + " " + line + "\n";
  return out;
}

TEST(ResumeClasses, AreTheRecordedOnes) {
  const std::set<std::string> now = described();
  EXPECT_GT(now.size(), 150u);
  if (const char* record = std::getenv("TRAINER_RECORD"); record && *record) {
    std::ofstream file(kRecorded);
    for (const std::string& line : now) file << line << "\n";
  }
  std::ifstream file(kRecorded);
  std::set<std::string> recorded;
  for (std::string line; std::getline(file, line);) recorded.insert(line);
  EXPECT_TRUE(now == recorded) << "- recorded, + now (to record: see the head of this file):\n"
                               << missing(now, recorded, '-') << missing(recorded, now, '+');
}

}  // namespace
}  // namespace train
