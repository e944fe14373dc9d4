// SPDX-License-Identifier: Apache-2.0
// Tests checksums, the framing of records and the numbers of files. tests/run/tensorboard_test.py
// reads the messages.
#include "records/event_file.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

namespace {

using records::crc32c;

// Values of RFC 3720, B.4.
TEST(Crc32c, has_the_published_values) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST(Crc32c, is_masked) {
  const uint32_t crc = crc32c("123456789");
  EXPECT_EQ(records::masked_crc32c("123456789"), ((crc >> 15) | (crc << 17)) + 0xa282ead8u);
}

TEST(Records, have_a_length_and_two_checksums) {
  const std::string text = "abc", record = records::tf_record(text);
  ASSERT_EQ(record.size(), 8 + 4 + text.size() + 4);
  uint64_t length = 0;
  uint32_t of_length = 0, of_text = 0;
  std::memcpy(&length, record.data(), 8);
  std::memcpy(&of_length, record.data() + 8, 4);
  std::memcpy(&of_text, record.data() + 12 + text.size(), 4);
  EXPECT_EQ(length, text.size());
  EXPECT_EQ(of_length, records::masked_crc32c(record.substr(0, 8)));
  EXPECT_EQ(record.substr(12, 3), text);
  EXPECT_EQ(of_text, records::masked_crc32c(text));
}

TEST(EventFiles, follow_each_other_and_come_back) {
  std::string folder = testing::TempDir() + "trainer_events_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  records::Summary summary;
  summary.scalar("loss", 1);
  const std::string first = folder + "/events.out.tfevents.0000000001";
  for (int attempt = 0; attempt < 2; ++attempt) records::EventFile(folder, 0).write(1, summary);
  EXPECT_EQ(io::list_directory(folder),
            (std::vector<std::string>{"events.out.tfevents.0000000001",
                                      "events.out.tfevents.0000000002"}));
  const int64_t bytes = io::File(first, io::File::Mode::read).size();
  records::EventFile third(folder, 5);
  third.write(6, summary);
  const std::string path = folder + "/events.out.tfevents.0000000003";
  EXPECT_EQ(io::File(path, io::File::Mode::read).size(), bytes);
  io::remove_file(path);
  third.write(7, summary);
  third.flush();  // begins the file again; later events follow
  third.write(8, summary);
  EXPECT_EQ(io::File(path, io::File::Mode::read).size(), bytes);
  io::remove_tree(folder);
}

}  // namespace
