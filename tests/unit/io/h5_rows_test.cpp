// SPDX-License-Identifier: Apache-2.0
// Tests single rows: conversions, limits on lengths that a file may claim, and refusals.
#include "io/h5_rows.hpp"

#include <gtest/gtest.h>
#include <hdf5.h>

#include <filesystem>
#include <future>

namespace {

using io::H5Rows;

class Rows : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = testing::TempDir() + "trainer_rows_XXXXXX";
    ASSERT_NE(::mkdtemp(directory_.data()), nullptr);
    path_ = directory_ + "/a.h5";
    hid_t file = H5Fcreate(path_.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    const float numbers[6] = {1, 2.5, -3, 4, 5, 6};
    put(file, "numbers", H5T_IEEE_F32BE, H5T_NATIVE_FLOAT, {3, 2}, numbers);
    const uint8_t bytes[5] = {1, 2, 3, 4, 5};
    const hvl_t lists[3] = {
        {5, const_cast<uint8_t*>(bytes)}, {0, nullptr}, {2, const_cast<uint8_t*>(bytes)}};
    hid_t list = H5Tvlen_create(H5T_NATIVE_UINT8);
    put(file, "lists", list, list, {3}, lists);
    const char* words[4] = {"one", "", "three and more", "4"};
    hid_t text = H5Tcopy(H5T_C_S1);
    H5Tset_size(text, H5T_VARIABLE);
    put(file, "words", text, text, {2, 2}, words);
    put(file, "number", H5T_STD_I32LE, H5T_NATIVE_INT32, {}, "\1\0\0\0");
    put(file, "endless", H5T_STD_U8LE, H5T_NATIVE_UINT8, {2, 1ull << 40, 1ull << 40}, nullptr);
    H5Tclose(list);
    H5Tclose(text);
    H5Fclose(file);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  static void put(hid_t file, const char* name, hid_t type, hid_t memory, std::vector<hsize_t> dims,
                  const void* data) {
    hid_t space = dims.empty() ? H5Screate(H5S_SCALAR)
                               : H5Screate_simple(int(dims.size()), dims.data(), nullptr);
    hid_t list = H5Pcreate(H5P_DATASET_CREATE);
    if (!data) {  // chunks that are never written
      std::vector<hsize_t> chunk(dims.size(), 1);
      H5Pset_chunk(list, int(chunk.size()), chunk.data());
    }
    hid_t set = H5Dcreate2(file, name, type, space, H5P_DEFAULT, list, H5P_DEFAULT);
    ASSERT_GE(set, 0) << name;
    if (data) {
      EXPECT_GE(H5Dwrite(set, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, data), 0) << name;
    }
    H5Dclose(set);
    H5Pclose(list);
    H5Sclose(space);
  }
  std::string failure(const std::function<void()>& body) {
    try {
      body();
    } catch (const io::Failure& e) {
      return e.what();
    }
    return "none";
  }
  std::string directory_, path_;
};

TEST_F(Rows, numbers_are_converted) {
  H5Rows rows(io::H5File::open(path_), "/numbers");  // outlives the file
  EXPECT_EQ(rows.count(), 3);
  EXPECT_EQ(rows.shape(), std::vector<int64_t>{2});
  EXPECT_EQ(rows.row_bytes(), 8);
  EXPECT_EQ(rows.type_text(), "f32 [2]");
  float two[2];
  rows.read<float>(1, two);
  EXPECT_EQ(two[0], -3);
  EXPECT_EQ(two[1], 4);
  int64_t whole[2];
  rows.read<int64_t>(0, whole);
  EXPECT_EQ(whole[1], 2);
}

// Rows that are stored as they are in memory are read by their place in the file, without HDF5's
// lock. Other rows wait for it.
TEST_F(Rows, threads_read_rows_at_the_same_time) {
  const std::string path = directory_ + "/places.h5";
  hid_t create = H5Pcreate(H5P_FILE_CREATE);
  H5Pset_userblock(create, 1024);  // every place in the file moves by that
  hid_t h5 = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, create, H5P_DEFAULT);
  std::vector<float> floats(12);
  std::vector<int64_t> whole(12);
  std::vector<uint64_t> large(12);
  std::vector<uint8_t> bytes(12);
  for (size_t i = 0; i < 12; ++i) {
    floats[i] = float(i) / 8;
    whole[i] = -int64_t(i) << 40;
    large[i] = ~uint64_t(i);
    bytes[i] = uint8_t(200 + i);
  }
  put(h5, "f", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, {4, 3}, floats.data());
  put(h5, "i", H5T_STD_I64LE, H5T_NATIVE_INT64, {4, 3}, whole.data());
  put(h5, "u", H5T_STD_U64LE, H5T_NATIVE_UINT64, {4, 3}, large.data());
  put(h5, "b", H5T_STD_U8LE, H5T_NATIVE_UINT8, {4, 3}, bytes.data());
  put(h5, "other", H5T_STD_I16BE, H5T_NATIVE_UINT8, {4, 3}, bytes.data());
  H5Fclose(h5);
  H5Pclose(create);

  io::H5File file = io::H5File::open(path);
  H5Rows f(file, "/f"), i(file, "/i"), u(file, "/u"), b(file, "/b"), other(file, "/other");
  std::vector<float> a(3);
  std::vector<int64_t> c(3);
  std::vector<uint64_t> d(3);
  std::vector<uint8_t> e(3), g(3);
  std::future<void> waits;
  std::vector<uint8_t> list(5);
  H5Rows(io::H5File::open(path_), "/lists").read_bytes(0, 5, [&](size_t) {  // holds the lock
    std::async(std::launch::async, [&] {
      f.read<float>(2, a);
      i.read<int64_t>(3, c);
      u.read<uint64_t>(0, d);
      b.read<uint8_t>(1, e);
    }).get();
    waits = std::async(std::launch::async, [&] { other.read<uint8_t>(1, g); });
    EXPECT_EQ(waits.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
    return list.data();
  });
  waits.get();
  EXPECT_EQ(a, (std::vector<float>{6 / 8.f, 7 / 8.f, 1}));
  EXPECT_EQ(c, (std::vector<int64_t>{-9ll << 40, -10ll << 40, -11ll << 40}));
  EXPECT_EQ(d, (std::vector<uint64_t>{~0ull, ~1ull, ~2ull}));
  EXPECT_EQ(e, (std::vector<uint8_t>{203, 204, 205}));
  EXPECT_EQ(g, e);
  // The other types of a number are converted.
  b.read<int64_t>(3, c);
  EXPECT_EQ(c, (std::vector<int64_t>{209, 210, 211}));
  i.read<float>(1, a);
  EXPECT_EQ(a[0], -3 * 0x1p40f);
  // A file that has lost its end since it was opened.
  std::filesystem::resize_file(path, 1200);
  EXPECT_NE(failure([&] { b.read<uint8_t>(3, e); }).find("more were expected"), std::string::npos);
}

TEST_F(Rows, lengths_are_limited) {
  io::H5File file = io::H5File::open(path_);
  H5Rows lists(file, "/lists"), words(file, "/words");
  EXPECT_EQ(lists.kind(), H5Rows::Kind::bytes);
  auto length = [&](int64_t row, int64_t most) {
    std::vector<uint8_t> out;
    lists.read_bytes(row, most, [&](size_t n) {
      out.resize(n);
      return out.data();
    });
    return out;
  };
  EXPECT_EQ(length(0, 5), (std::vector<uint8_t>{1, 2, 3, 4, 5}));
  EXPECT_TRUE(length(1, 5).empty());
  EXPECT_NE(failure([&] { length(0, 4); }).find("row 0 of /lists has more than 4 bytes"),
            std::string::npos);
  EXPECT_EQ(length(2, 4).size(), 2u);  // later rows are still readable
  EXPECT_EQ(words.read_texts(1, 100), (std::vector<std::string>{"three and more", "4"}));
  EXPECT_NE(failure([&] { words.read_texts(1, 14); }).find("more than 14 bytes"),
            std::string::npos);
  EXPECT_EQ(words.read_texts(0, 14), (std::vector<std::string>{"one", ""}));
}

TEST_F(Rows, what_has_no_rows) {
  io::H5File file = io::H5File::open(path_);
  EXPECT_NE(failure([&] { H5Rows(file, "/number"); }).find("no axis"), std::string::npos);
  EXPECT_NE(failure([&] { H5Rows(file, "/none"); }).find("/none"), std::string::npos);
  H5Rows endless(file, "/endless");
  EXPECT_EQ(endless.row_bytes(), std::numeric_limits<int64_t>::max());  // 2^80 do not overflow
  EXPECT_EQ(endless.chunk_bytes(), 1);
}

}  // namespace
