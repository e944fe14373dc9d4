// SPDX-License-Identifier: Apache-2.0
// Tests the HDF5 source, on files that the C library makes like h5py.
#include "data/sources/hdf5.hpp"

#include <gtest/gtest.h>
#include <hdf5.h>

#include <limits>
#include <thread>

#include "io/h5.hpp"
#include "support.hpp"

namespace data {
namespace {

using base::Exit;
using test::expect_error;

// Writes with raw HDF5 calls, one at a time, before any source is open.
class Writer {
 public:
  explicit Writer(const std::string& path)
      : file_(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT)) {}
  ~Writer() { H5Fclose(file_); }

  template <class T>
  void numbers(const char* name, hid_t file_type, hid_t memory_type, std::vector<hsize_t> dims,
               const std::vector<T>& v, std::vector<hsize_t> chunk = {}) {
    put(name, file_type, memory_type, std::move(dims), v.data(), std::move(chunk));
  }
  void lists(const char* name, const std::vector<std::string>& items,
             hid_t element = H5T_NATIVE_UINT8) {
    hid_t type = H5Tvlen_create(element);
    std::vector<hvl_t> raw;
    for (const std::string& s : items) raw.push_back({s.size(), const_cast<char*>(s.data())});
    put(name, type, type, {items.size()}, raw.data(), {});
    H5Tclose(type);
  }
  void texts(const char* name, const std::vector<std::string>& items, std::vector<hsize_t> dims) {
    hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, H5T_VARIABLE);
    H5Tset_cset(type, H5T_CSET_UTF8);
    std::vector<const char*> raw;
    for (const std::string& s : items) raw.push_back(s.c_str());
    put(name, type, type, std::move(dims), raw.data(), {});
    H5Tclose(type);
  }
  void fixed_texts(const char* name, const std::string& all, size_t each) {
    hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, each);
    H5Tset_strpad(type, H5T_STR_NULLPAD);
    put(name, type, type, {all.size() / each}, all.data(), {});
    H5Tclose(type);
  }

 private:
  void put(const char* name, hid_t file_type, hid_t memory_type, std::vector<hsize_t> dims,
           const void* data, std::vector<hsize_t> chunk) {
    hid_t space = H5Screate_simple(int(dims.size()), dims.data(), nullptr),
          list = H5Pcreate(H5P_DATASET_CREATE);
    if (!chunk.empty()) H5Pset_chunk(list, int(chunk.size()), chunk.data());
    hid_t set = H5Dcreate2(file_, name, file_type, space, H5P_DEFAULT, list, H5P_DEFAULT);
    EXPECT_GE(set, 0) << name;
    if (data) {
      EXPECT_GE(H5Dwrite(set, memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data), 0) << name;
    }
    H5Dclose(set);
    H5Pclose(list);
    H5Sclose(space);
  }
  hid_t file_;
};

struct Hdf5Test : testing::Test {
  test::TemporaryDirectory dir;
  Hdf5Options options;
  Hdf5Test() { options.path = dir / "a.h5"; }

  std::unique_ptr<Source> open(std::map<std::string, std::string> fields) {
    options.fields = std::move(fields);
    std::unique_ptr<Source> source = options.open({});
    for (int64_t i = 0; i < source->size(); ++i) {
      Sample s = source->read(i);
      for (auto& [field, known] : options.spec())
        EXPECT_EQ(mismatch(known, s.at(field)), "") << field;
    }
    return source;
  }
};

TEST_F(Hdf5Test, EveryKindOfRow) {
  {
    Writer w(options.path);
    std::vector<uint8_t> pixels(3 * 2 * 2 * 3);
    for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = uint8_t(i);
    w.numbers<uint8_t>("pixels", H5T_STD_U8LE, H5T_NATIVE_UINT8, {3, 2, 2, 3}, pixels,
                       {2, 2, 2, 3});
    w.numbers<int64_t>("label", H5T_STD_I64BE, H5T_NATIVE_INT64, {3}, {7, -8, 9});
    w.numbers<int64_t>("tokens", H5T_STD_U16LE, H5T_NATIVE_INT64, {3, 2}, {1, 2, 3, 4, 5, 6});
    w.numbers<double>("scores", H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, {3, 1}, {0.5, 1.5, -2});
    w.lists("files", {std::string("a\0b", 3), "", "PNG..."});
    w.texts("text", {"one", "zwei ä", ""}, {3});
    w.texts("captions", {"a", "b", "c", "", "", ""}, {3, 2});
    w.fixed_texts("fixed", std::string("ab\0cd\0xyz", 9), 3);
  }
  std::unique_ptr<Source> source = open({{"image", "pixels: u8 [2, 2, 3]"},
                                         {"label", "label: i32"},
                                         {"tokens", "/tokens:i32 [2]"},
                                         {"scores", "scores: f32 [1]"},
                                         {"file", "files: bytes"},
                                         {"text", "text: text"},
                                         {"captions", "captions: texts"},
                                         {"fixed", "fixed: text"}});
  ASSERT_EQ(source->size(), 3);
  EXPECT_EQ(source->key(1), options.path + ":1");
  Sample s = source->read(1);
  EXPECT_EQ(std::get<Array>(s["image"]).u8()[0], 12);
  EXPECT_EQ(std::get<Array>(s["label"]).i32()[0], -8);
  EXPECT_EQ(std::get<Array>(s["tokens"]).i32()[1], 4);
  EXPECT_EQ(std::get<Array>(s["scores"]).f32()[0], 1.5f);
  EXPECT_EQ(std::get<Bytes>(s["file"]).size(), 0u);
  EXPECT_EQ(std::get<std::string>(s["text"]), "zwei ä");
  EXPECT_EQ(std::get<Texts>(s["captions"]), (Texts{"c"}));
  EXPECT_EQ(std::get<std::string>(s["fixed"]), "cd");
  s = source->read(0);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(std::get<Bytes>(s["file"]).data()), 3),
            std::string("a\0b", 3));
  EXPECT_EQ(std::get<Texts>(s["captions"]), (Texts{"a", "b"}));
}

TEST_F(Hdf5Test, SeveralFilesAndThreads) {
  for (auto [name, first, count] :
       {std::tuple{"p-0.h5", 0, 5}, {"p-1.h5", 5, 0}, {"p-2.h5", 5, 7}}) {
    Writer w(dir / name);
    std::vector<int32_t> ids;
    std::vector<std::string> files;
    for (int i = first; i < first + count; ++i) {
      ids.push_back(i);
      files.push_back(std::string(size_t(i * 1000), 'x'));
    }
    w.numbers<int32_t>("id", H5T_STD_I32LE, H5T_NATIVE_INT32, {hsize_t(count)}, ids);
    w.lists("file", files);
  }
  options.path = dir / "p-{0..2}.h5";
  std::unique_ptr<Source> source = open({{"id", "id: i32"}, {"file", "file: bytes"}});
  ASSERT_EQ(source->size(), 12);
  EXPECT_EQ(source->key(5), dir / "p-2.h5:0");
  std::vector<std::jthread> threads;
  std::atomic<int> bad{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int64_t i = 0; i < 120; ++i) {
        int64_t n = (i * 7 + t) % 12;
        Sample s = source->read(n);
        bad += std::get<Array>(s["id"]).i32()[0] != n ||
               std::get<Bytes>(s["file"]).size() != size_t(n * 1000);
      }
    });
  threads.clear();
  EXPECT_EQ(bad, 0);
}

// A field without a type has the type of the first file's dataset. The spec is known before any
// file is opened.
TEST_F(Hdf5Test, TypesOfTheFile) {
  auto write = [&](const std::string& path, hsize_t side) {
    Writer w(path);
    w.numbers<uint8_t>("images", H5T_STD_U8LE, H5T_NATIVE_UINT8, {2, side, 4, 3},
                       std::vector<uint8_t>(24 * side, 9));
    w.numbers<uint8_t>("labels", H5T_STD_U8LE, H5T_NATIVE_UINT8, {2}, {3, 200});
    w.numbers<int64_t>("tokens", H5T_STD_I64LE, H5T_NATIVE_INT64, {2, 2}, {1, 2, 3, 4});
    w.numbers<double>("score", H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, {2}, {0.5, 1.5});
    w.lists("files", {"a", "b"});
    w.texts("text", {"one", "two"}, {2});
    w.texts("captions", {"a", "b", "c", ""}, {2, 2});
    w.numbers<uint8_t>("wide", H5T_STD_U8LE, H5T_NATIVE_UINT8, {1 << 15, 1 << 14}, {},
                       {1 << 15, 1 << 14});
  };
  write(options.path, 5);
  std::map<std::string, std::string> fields;
  for (const char* name : {"images", "labels", "tokens", "score", "files", "text", "captions"})
    fields[name] = name;
  std::unique_ptr<Source> source = open(fields);
  EXPECT_EQ(text_of(options.spec()),
            "captions texts, files encoded bytes, images u8 [5,4,3], labels i32 [], score f32 [], "
            "text text, tokens i32 [2]");
  EXPECT_EQ(std::get<Array>(source->read(1)["labels"]).i32()[0], 200);
  // The first of several files gives the type, and the others must match it.
  write(dir / "b.h5", 6);
  options.path = dir / "{a,b}.h5";
  options.fields = {{"image", "images"}};
  expect_error(Exit::data,
               {"b.h5': dataset '/images' is u8 [6,4,3], in '", "a.h5' it is u8 [5,4,3]"},
               [&] { options.open({}); });
  options.fields = {{"image", "imagse"}};
  expect_error(Exit::data, {"no dataset '/imagse'", "nearest is '/images'"},
               [&] { options.spec(); });
  options.fields = {{"image", "wide"}};
  expect_error(Exit::data, {"chunks of 536870912 bytes"}, [&] { options.spec(); });
  options.path = dir / "none.h5";
  options.fields = {{"image", "images"}};
  expect_error(Exit::data, {"none.h5", "cannot open"}, [&] { options.spec(); });
  options.fields = {{"image", "images: bytes"}};
  EXPECT_EQ(text_of(options.spec()), "image encoded bytes") << "a full description needs no file";
}

// h5py writes booleans as an enumeration of bytes.
TEST_F(Hdf5Test, EnumerationsAndLinesOfTexts) {
  {
    Writer w(options.path);
    const hid_t boolean = H5Tenum_create(H5T_STD_I8LE);
    for (int8_t value : {0, 1}) H5Tenum_insert(boolean, value ? "TRUE" : "FALSE", &value);
    w.numbers<int8_t>("seen", boolean, boolean, {2}, {1, 0});
    w.numbers<int8_t>("mask", boolean, boolean, {2, 2}, {0, 1, 1, 0});
    H5Tclose(boolean);
    w.texts("text", {"two\r\nlines\n", "one"}, {2});
    w.texts("captions", {"a\nb", "c\n", "d", ""}, {2, 2});
  }
  std::unique_ptr<Source> source = open(
      {{"label", "seen"}, {"mask", "mask"}, {"text", "text"}, {"captions", "captions: texts"}});
  Sample s = source->read(0);
  EXPECT_EQ(std::get<Array>(s["label"]).i32()[0], 1);
  EXPECT_EQ(std::get<Array>(source->read(1)["mask"]).i32()[0], 1);
  EXPECT_EQ(std::get<std::string>(s["text"]), "two lines");
  EXPECT_EQ(std::get<Texts>(s["captions"]), (Texts{"a b", "c"}));
}

// Java and NumPy's int8 have bytes with a sign; a file's bytes are the same.
TEST_F(Hdf5Test, ListsOfSignedBytes) {
  const std::string jpeg = "\xff\xd8\xff\xe0 \x7f\x80";
  {
    Writer w(options.path);
    w.lists("files", {jpeg, ""}, H5T_NATIVE_INT8);
  }
  std::unique_ptr<Source> source = open({{"image", "files"}});
  const Bytes bytes = std::get<Bytes>(source->read(0)["image"]);
  EXPECT_EQ(std::string(bytes.data(), bytes.data() + bytes.size()), jpeg);
  EXPECT_EQ(std::get<Bytes>(source->read(1)["image"]).size(), 0u);
}

TEST_F(Hdf5Test, WholeNumbersOf32Bits) {
  constexpr int64_t kLeast = std::numeric_limits<int32_t>::min(),
                    kMost = std::numeric_limits<int32_t>::max();
  {
    Writer w(dir / "a.h5");
    w.numbers<int64_t>("x", H5T_STD_I64LE, H5T_NATIVE_INT64, {4},
                       {kLeast, kMost, kLeast - 1, kMost + 1});
  }
  options.fields = {{"x", "x: i32"}};
  std::unique_ptr<Source> source = options.open({});
  EXPECT_EQ(std::get<Array>(source->read(0)["x"]).i32()[0], kLeast);
  EXPECT_EQ(std::get<Array>(source->read(1)["x"]).i32()[0], kMost);
  for (int64_t row : {2, 3})
    expect_error(Exit::data, {"'/x' holds", "does not fit into 32 bits"},
                 [&] { source->read(row); });
  {
    options.path = dir / "b.h5";
    Writer w(options.path);
    w.numbers<uint64_t>("x", H5T_STD_U64LE, H5T_NATIVE_UINT64, {2}, {7, UINT64_MAX});
  }
  source = options.open({});
  EXPECT_EQ(std::get<Array>(source->read(0)["x"]).i32()[0], 7);
  expect_error(Exit::data, {"'/x' holds 18446744073709551615, which"}, [&] { source->read(1); });
}

TEST_F(Hdf5Test, PathsWithStars) {
  for (int64_t k : {2, 10}) {
    Writer w(dir / fmt::format("part-{}.h5", k));
    w.numbers<int64_t>("x", H5T_STD_I64LE, H5T_NATIVE_INT64, {1}, {k});
  }
  options.path = dir / "part-*.h5";
  options.fields = {{"x", "x"}};
  EXPECT_EQ(text_of(options.spec()), "x i32 []");
  std::unique_ptr<Source> source = options.open({});
  ASSERT_EQ(source->size(), 2);
  EXPECT_EQ(std::get<Array>(source->read(0)["x"]).i32()[0], 10) << "sorted by name";
  options.path = dir / "prat-*.h5";
  expect_error(Exit::data, {"no file matches", "prat-*.h5"}, [&] { options.spec(); });
}

TEST_F(Hdf5Test, FingerprintSeesWhatSomeRowsHold) {
  auto print = [&](const std::string& middle) {
    {
      Writer w(dir / "a.h5");
      w.lists("images", {"first", "1", "2", middle, "4", "5", "last!"});
    }
    return open({{"image", "images"}})->fingerprint();
  };
  uint64_t one = print("aaaa"), other = print("bbbb");
  EXPECT_NE(one, other);
  EXPECT_EQ(one, print("aaaa"));
}

TEST_F(Hdf5Test, FilesAsTextsAreRefusedWithTheWayOut) {
  {
    Writer w(dir / "a.h5");
    w.texts("images", {"a"}, {1});
  }
  expect_error(Exit::data, {"images", "zero byte", "vlen_dtype"}, [&] {
    open({{"image", "images: bytes"}});
  });
}

TEST_F(Hdf5Test, WhatTheFileHasIsNamed) {
  {
    Writer w(options.path);
    w.numbers<uint8_t>("images", H5T_STD_U8LE, H5T_NATIVE_UINT8, {2, 4, 4, 3},
                       std::vector<uint8_t>(96));
    w.numbers<int64_t>("big", H5T_STD_I64LE, H5T_NATIVE_INT64, {2}, {1, int64_t{1} << 40});
    w.numbers<float>("short", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, {1}, {1});
    w.numbers<float>("scalarless", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, {2}, {1, 2});
    w.numbers<uint8_t>("chunky", H5T_STD_U8LE, H5T_NATIVE_UINT8, {1 << 15, 1 << 14}, {},
                       {1 << 15, 1 << 14});
    w.texts("text", {"a", "b"}, {2});
    const hid_t pair = H5Tcreate(H5T_COMPOUND, 8), opaque = H5Tcreate(H5T_OPAQUE, 4);
    H5Tinsert(pair, "a", 0, H5T_NATIVE_INT32);
    H5Tinsert(pair, "b", 4, H5T_NATIVE_INT32);
    w.numbers<int32_t>("pairs", pair, pair, {2}, {1, 2, 3, 4});
    w.numbers<int32_t>("opaque", opaque, opaque, {2}, {1, 2});
    H5Tclose(pair);
    H5Tclose(opaque);
  }
  auto bad = [&](std::map<std::string, std::string> fields, std::vector<std::string> parts) {
    options.fields = std::move(fields);
    expect_error(Exit::data, parts, [&] { options.open({}); });
  };
  bad({{"image", "imges: bytes"}},
      {"no dataset '/imges'", "field 'image'", "nearest is '/images'", "/text"});
  bad({{"image", "images: bytes"}},
      {"'/images' is u8 [4,4,3]", "says bytes", "write \"images: u8 [4,4,3]\""});
  bad({{"image", "images: u8 [4, 4]"}}, {"says u8 [4,4]", "write \"images: u8 [4,4,3]\""});
  bad({{"image", "images: f32 [4, 4, 3]"}}, {"says f32 [4,4,3]"});
  bad({{"p", "pairs"}}, {"'/pairs' (field 'p') is a compound type, which cannot be read; write"});
  bad({{"p", "opaque"}}, {"'/opaque' (field 'p') is opaque bytes", "vlen_dtype(numpy.uint8)"});
  bad({{"text", "text: texts"}}, {"is text", "write \"text: text\""});
  bad({{"a", "big: i32"}, {"b", "short: f32"}}, {"'/short' has 1 rows, '/big' has 2"});
  // The chunks are never written, so the file is small.
  bad({{"a", "chunky: u8 [16384]"}}, {"chunks of 536870912 bytes", "at most 268435456"});
  options.fields = {{"a", "rows: u8 [32768, 16384]"}};
  expect_error(Exit::config, {"more than 268435456 bytes"}, [&] { options.spec(); });
  options.fields = {{"n", "big: i32"}};
  std::unique_ptr<Source> source = options.open({});
  EXPECT_EQ(std::get<Array>(source->read(0)["n"]).i32()[0], 1);
  expect_error(Exit::data, {"/big", "1099511627776"}, [&] { source->read(1); });
  source.reset();
  test::write_file(options.path, "not HDF5");
  bad({{"n", "big: i32"}}, {"a.h5", "cannot open"});
  options.path = dir / "none.h5";
  bad({{"n", "big: i32"}}, {"none.h5", "cannot open"});
}

TEST(Hdf5Field, Forms) {
  EXPECT_EQ(parse_hdf5_field("a/b : u8 [ 4,5 ]"),
            (Hdf5Field{"/a/b", FieldSpec::array(device::DType::u8, {4, 5})}));
  EXPECT_EQ(parse_hdf5_field("x:i32[]").spec, FieldSpec::array(device::DType::i32, {}));
  EXPECT_EQ(parse_hdf5_field(" a/b "), (Hdf5Field{"/a/b", std::nullopt}));
  for (auto [text, part] : {std::pair{" ", "\"DATASET: TYPE\""},
                            {": u8", "\"DATASET: TYPE\""},
                            {"a: u9", "'u9' is not a type"},
                            {"a: u8 [4", "never closed"},
                            {"a: u8 [4, x]", "'x' is not a size"},
                            {"a: u8 [0]", "'0' is not a size"},
                            {"a: f64 [2]", "'f64 [2]' is not a type"}})
    expect_error(Exit::config, {part, text}, [&, t = text] { parse_hdf5_field(t); });
}

}  // namespace
}  // namespace data
