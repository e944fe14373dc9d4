// SPDX-License-Identifier: Apache-2.0
#include "io/h5.hpp"

#include <gtest/gtest.h>
#include <hdf5.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>

namespace {

using io::H5File;
using io::H5Type;

class H5 : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = testing::TempDir() + "trainer_h5_XXXXXX";
    ASSERT_NE(::mkdtemp(directory_.data()), nullptr);
    path_ = directory_ + "/a.h5";
  }
  void TearDown() override {
    std::string command = "rm -rf '" + directory_ + "'";
    ASSERT_EQ(std::system(command.c_str()), 0);
  }
  std::string directory_, path_;
};

TEST_F(H5, numbers_of_every_type_come_back) {
  {
    H5File file = H5File::create(path_);
    file.create<float>("/a/f32", std::vector<float>{1, 2.5, -3, 4, 5, 6}, {2, 3});
    file.create<double>("/a/f64", std::vector<double>{1e300}, {});
    file.create<int32_t>("/a/i32", std::vector<int32_t>{-7, 7}, {2});
    file.create<int64_t>("/i64", std::vector<int64_t>{int64_t{1} << 60}, {1});
    file.create<uint8_t>("/b/c/u8", std::vector<uint8_t>{255, 0}, {2});
    file.create<uint64_t>("/b/u64", std::vector<uint64_t>{~uint64_t{0}}, {1});
    file.create<float>("/b/empty", std::vector<float>{}, {0, 5});
    file.close();
  }
  H5File file = H5File::open(path_);
  EXPECT_EQ(file.datasets(), (std::vector<std::string>{"/a/f32", "/a/f64", "/a/i32", "/b/c/u8",
                                                       "/b/empty", "/b/u64", "/i64"}));
  EXPECT_EQ(file.datasets("/b"), (std::vector<std::string>{"/b/c/u8", "/b/empty", "/b/u64"}));
  EXPECT_EQ(file.read<float>("/a/f32"), (std::vector<float>{1, 2.5, -3, 4, 5, 6}));
  EXPECT_EQ(file.read<double>("/a/f32")[1], 2.5);  // HDF5 converts
  EXPECT_EQ(file.read<double>("/a/f64"), std::vector<double>{1e300});
  EXPECT_EQ(file.read<int32_t>("/a/i32"), (std::vector<int32_t>{-7, 7}));
  EXPECT_EQ(file.read<int64_t>("/i64"), std::vector<int64_t>{int64_t{1} << 60});
  EXPECT_EQ(file.read<uint64_t>("/b/u64"), std::vector<uint64_t>{~uint64_t{0}});
  EXPECT_TRUE(file.read<float>("/b/empty").empty());
  io::H5Info info = file.info("/a/f32");
  EXPECT_EQ(info.type, H5Type::f32);
  EXPECT_EQ(info.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(info.bytes, 24);
  EXPECT_TRUE(file.info("/a/f64").shape.empty());
  EXPECT_EQ(file.info("/b/u64").type, H5Type::u64);
  EXPECT_TRUE(file.exists("/b/c") && file.exists("/b/c/u8") && !file.exists("/b/c/u8/x") &&
              !file.exists("/x/y/z"));
}

TEST_F(H5, offsets_are_where_the_bytes_lie) {
  int64_t small = 0, large = 0;
  {
    H5File file = H5File::create(
        path_,
        {.user_block = 4096, .alignment = 4096, .aligned_from = 1 << 16, .metadata_block = 8192});
    small = file.create_contiguous("/small", H5Type::i32, {3});
    large = file.create_contiguous("/large", H5Type::bf16, {1 << 15});
    EXPECT_EQ(file.create_contiguous("/none", H5Type::f32, {0}), -1);
    file.close();
  }
  EXPECT_GT(small, 4096);
  EXPECT_EQ(large % 4096, 0);
  {
    io::File raw(path_, io::File::Mode::write);
    raw.write_at("\1\0\0\0\2\0\0\0\3\0\0\0", 12, small);
    raw.write_at("\x80\x3f", 2, large);  // 1.0 in bfloat16
    raw.write_at("text before HDF5", 16, 0);
  }
  H5File file = H5File::open(path_);
  EXPECT_EQ(file.read<int32_t>("/small"), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(file.info("/large").type, H5Type::bf16);
  EXPECT_EQ(file.info("/large").offset, large);
  EXPECT_EQ(file.read<uint16_t>("/large")[0], 0x3f80);
  EXPECT_EQ(std::get<std::string>(*file.attribute("/large", "dtype")), "bf16");
}

TEST_F(H5, attributes) {
  {
    H5File file = H5File::create(path_);
    file.make_group("/g");
    file.set_attribute("/", "number", 0.1);
    file.set_attribute("/", "step", int64_t{-5});
    file.set_attribute("/g", "name", std::string("Grüße"));
    file.set_attribute("/g", "empty", std::string());
    for (int i = 0; i < 100; ++i) file.set_attribute("/", "a" + std::to_string(i), int64_t{i});
    file.set_attribute("/", "step", int64_t{6});                       // in place
    file.set_attribute("/g", "name", std::string("much longer now"));  // replaced
    file.close();
  }
  H5File file = H5File::open(path_);
  EXPECT_EQ(std::get<double>(*file.attribute("/", "number")), 0.1);
  EXPECT_EQ(std::get<int64_t>(*file.attribute("/", "step")), 6);
  EXPECT_EQ(std::get<int64_t>(*file.attribute("/", "a99")), 99);
  EXPECT_EQ(std::get<std::string>(*file.attribute("/g", "name")), "much longer now");
  EXPECT_EQ(std::get<std::string>(*file.attribute("/g", "empty")), "");
  EXPECT_FALSE(file.attribute("/", "none"));
  EXPECT_EQ(file.attributes("/g"), (std::vector<std::string>{"empty", "name"}));
}

// h5py writes these with libver="latest" and for SWMR.
TEST_F(H5, files_of_newer_formats_are_read) {
  for (H5F_libver_t version : {H5F_LIBVER_V18, H5F_LIBVER_V110, H5F_LIBVER_LATEST}) {
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    ASSERT_GE(H5Pset_libver_bounds(access, version, version), 0);
    const hid_t file = H5Fcreate(path_.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
    const hsize_t size = 2, chunk = 1;
    const hid_t space = H5Screate_simple(1, &size, nullptr), list = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(list, 1, &chunk);
    const hid_t set = H5Dcreate2(file, "x", H5T_STD_I32LE, space, H5P_DEFAULT, list, H5P_DEFAULT);
    const int32_t values[2] = {3, 4};
    ASSERT_GE(H5Dwrite(set, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, values), 0);
    H5Dclose(set);
    H5Pclose(list);
    H5Sclose(space);
    H5Fclose(file);
    H5Pclose(access);
    EXPECT_EQ(H5File::open(path_).read<int32_t>("/x"), (std::vector<int32_t>{3, 4})) << version;
  }
}

TEST_F(H5, texts_and_growing_columns) {
  {
    H5File file = H5File::create(path_);
    EXPECT_GT(file.create_contiguous_text("/deck", 10), 0);
    file.create_extendible("/train/loss", H5Type::f64, 3, 64);
    file.write<double>("/train/loss", std::vector<double>{1, NAN, 3});
    file.create_extendible("/train/none", H5Type::f64, 0, 64);
    file.close();
  }
  H5File file = H5File::open(path_);
  EXPECT_EQ(file.info("/deck").type, H5Type::text);
  EXPECT_EQ(file.info("/deck").text_bytes, 10);
  EXPECT_EQ(file.read_text("/deck"), "");
  EXPECT_EQ(file.read<double>("/train/loss")[2], 3);
  EXPECT_TRUE(std::isnan(file.read<double>("/train/loss")[1]));
  EXPECT_EQ(file.info("/train/loss").offset, -1);
  EXPECT_TRUE(file.read<double>("/train/none").empty());
}

TEST_F(H5, errors_name_file_object_and_reason) {
  auto message = [](const auto& work) -> std::string {
    try {
      work();
    } catch (const base::Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(message([&] { H5File::open(path_); }).find(path_ + ": cannot open the file"),
            std::string::npos);
  EXPECT_NE(message([&] { H5File::open(path_); }).find("No such file"), std::string::npos);
  io::write_file_atomically(path_, "this is not HDF5");
  EXPECT_NE(message([&] { H5File::open(path_); }).find("signature"), std::string::npos);
  H5File file = H5File::create(path_);
  EXPECT_NE(message([&] { file.read<float>("/a/b"); }).find("open dataset /a/b"),
            std::string::npos);
  file.create<float>("/x", std::vector<float>{1}, {1});
  EXPECT_NE(message([&] {
              file.create<float>("/x", std::vector<float>{1}, {1});
            }).find("create dataset /x"),
            std::string::npos);
  EXPECT_NE(message([&] {
              file.write<float>("/x", std::vector<float>{1, 2});
            }).find("2 elements given, 1 there"),
            std::string::npos);
  EXPECT_NE(message([&] { file.read_text("/x"); }).find("does not hold text"), std::string::npos);
  EXPECT_NE(
      message([&] { H5File::create(directory_ + "/none/a.h5").close(); }).find("No such file"),
      std::string::npos);
}

// Equal contents make equal files, so files can be compared as bytes.
TEST_F(H5, files_do_not_depend_on_when_they_were_written) {
  auto make = [&] {
    H5File file = H5File::create(path_);
    file.make_group("/g");
    file.create<float>("/g/x", std::vector<float>{1}, {1});
    file.set_attribute("/g", "a", 1.0);
    file.close();
    return io::read_file(path_);
  };
  std::string first = make();
  ::usleep(1'100'000);
  EXPECT_EQ(make(), first);
}

}  // namespace
