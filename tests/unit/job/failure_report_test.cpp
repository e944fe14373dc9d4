// SPDX-License-Identifier: Apache-2.0
// Tests that the report of a failure needs no room on the disk, and that the first one stays.
#include "job/failure_report.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "io/files.hpp"

namespace job {
namespace {

namespace fs = std::filesystem;

TEST(FailureReport, TakesTheRoomThatWasKept) {
  const std::string folder =
      (fs::temp_directory_path() / fmt::format("report_{}", ::getpid())).string();
  fs::remove_all(folder);
  fs::create_directories(folder);
  const std::string report = folder + "/report.txt", spare = folder + "/report.spare";
  io::File(spare, io::File::Mode::create).append(std::string(kReportBytes, '\n'));
  set_report_file(report, spare);
  const auto number = io::id_of(spare);
  write_report(5, "the loss is -nan");
  EXPECT_EQ(io::id_of(report), number);
  EXPECT_FALSE(fs::exists(spare));
  const std::string text = io::read_file(report);
  EXPECT_NE(text.find("exit=5: the loss is nan\n"), std::string::npos) << text;
  EXPECT_EQ(text.find('\n') + 1, text.size());
  write_report(4, "another rank");
  EXPECT_EQ(io::read_file(report), text);
  // Without that file the report is a new one.
  fs::remove(report);
  write_report(4, "another rank");
  EXPECT_NE(io::read_file(report).find("exit=4: another rank"), std::string::npos);
  set_report_file("");
  fs::remove_all(folder);
}

}  // namespace
}  // namespace job
