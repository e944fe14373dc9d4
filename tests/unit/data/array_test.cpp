// SPDX-License-Identifier: Apache-2.0
#include "data/array.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "support.hpp"

namespace data {
namespace {

TEST(Bytes, AlignedAndCopied) {
  for (size_t size : {size_t{0}, size_t{1}, size_t{63}, size_t{4096}, size_t{1000003}}) {
    Bytes a(size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % 64, 0u);
    if (size) std::memset(a.data(), 7, size);
    Bytes b = a, c = std::move(a);
    ASSERT_EQ(b.size(), size);
    ASSERT_EQ(c.size(), size);
    EXPECT_TRUE(size == 0 || std::memcmp(b.data(), c.data(), size) == 0);
    EXPECT_TRUE(size == 0 || b.data() != c.data());
    EXPECT_EQ(a.size(), 0u);
  }
}

TEST(Bytes, BlocksAreUsedAgain) {
  { Bytes warm(500'000); }
  int64_t before = blocks_from_system();
  for (int i = 0; i < 100; ++i) Bytes b(size_t(480'000 + i * 100));
  EXPECT_LE(blocks_from_system() - before, 1);
  before = blocks_from_system();
  // Large blocks are not kept, so memory stays flat after one rare large image.
  for (int i = 0; i < 3; ++i) Bytes huge(size_t{40} << 20);
  EXPECT_EQ(blocks_from_system() - before, 3);
}

TEST(Bytes, OneThreadMakesAnotherFrees) {
  std::vector<Bytes> made;
  std::thread([&] {
    for (int i = 0; i < 50; ++i) made.emplace_back(10'000);
  }).join();
  made.clear();
  Bytes later(10'000);
  static Bytes at_exit(10'000);  // dies after this thread's pool
}

TEST(Array, Texts) {
  using device::DType;
  EXPECT_EQ(text_of(FieldSpec::array(DType::f32, {-1, 4, 3})), "f32 [?,4,3]");
  EXPECT_EQ(mismatch(FieldSpec::array(DType::f32, {-1, 4}), Array(DType::f32, {9, 4})), "");
  EXPECT_EQ(mismatch(FieldSpec::array(DType::f32, {-1, 4}), Array(DType::f32, {9, 5})),
            "is f32 [9,5], expected f32 [?,4]");
  EXPECT_EQ(mismatch(FieldSpec::characters(), Bytes(3)), "is encoded bytes, expected text");
  EXPECT_EQ(text_of(Spec{}), "nothing");
}

}  // namespace
}  // namespace data
