// SPDX-License-Identifier: Apache-2.0
// Tests the header of a checkpoint and the words of checkpoint.resume.
#include "checkpoint/header.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "checkpoint/options.hpp"

namespace {

TEST(Header, survives_and_refuses) {
  checkpoint::Header h{.step = 12,
                       .file_bytes = 99999,
                       .structure = {{4096, 8192}, {9000, 9010}},
                       .structure_hash = 0xabc,
                       .index = {9100, 9200},
                       .index_hash = 0xdef};
  std::string text = encode(h);
  EXPECT_EQ(int64_t(text.size()), checkpoint::kUserBlock);
  checkpoint::Header back = checkpoint::decode_header(text);
  EXPECT_EQ(back.step, 12);
  EXPECT_EQ(back.file_bytes, 99999);
  EXPECT_EQ(back.structure, h.structure);
  EXPECT_EQ(back.structure_hash, 0xabcu);
  EXPECT_EQ(back.index, h.index);
  EXPECT_EQ(back.index_hash, 0xdefu);
  size_t length = text.find('\0');
  for (size_t at = 0; at < length; ++at) {
    std::string bad = text;
    bad[at] = char(bad[at] ^ 1);
    EXPECT_THROW(checkpoint::decode_header(bad), base::Error) << at;
  }
  h.format = 1;
  try {
    checkpoint::decode_header(encode(h));
    FAIL();
  } catch (const base::Error& e) {
    EXPECT_STREQ(e.what(), "it has format 1, this program reads format 2");
  }
}

TEST(Options, resume_is_a_word_or_a_step) {
  EXPECT_EQ(checkpoint::resume_step("1000"), 1000);
  EXPECT_EQ(checkpoint::resume_step("0"), 0);
  for (const char* bad : {"auto", "must", "never", "", "-1", "-0", "10x", "1.5", " 3"})
    EXPECT_EQ(checkpoint::resume_step(bad), -1) << bad;
  EXPECT_EQ(checkpoint::resume_nth("-1"), 1);
  EXPECT_EQ(checkpoint::resume_nth("-12"), 12);
  for (const char* bad : {"auto", "", "-", "1", "-0", "--1", "-1x", "- 1"})
    EXPECT_EQ(checkpoint::resume_nth(bad), 0) << bad;
}

}  // namespace
