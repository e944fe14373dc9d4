// SPDX-License-Identifier: Apache-2.0
// Tests HDF5 files with missing rows, which HDF5 silently fills with zeros, and rows that this
// library cannot read.
#include <gtest/gtest.h>
#include <hdf5.h>

#include <functional>

#include "data/sources/hdf5.hpp"
#include "data/sources/staging.hpp"
#include "support.hpp"
#include "tests/unit/recorded.hpp"

namespace data {
namespace {

using base::Exit;
using test::expect_error;

// A dataset "x" of 4 rows of 2 numbers, 0 to 7 in order, in a file of its own. `prepare` changes
// how it is stored; `rows` are written.
struct Made {
  std::function<void(hid_t list)> prepare = [](hid_t) {};
  hsize_t shape_rows = 4, rows = 4;
  hid_t type = H5T_STD_I32LE;
};
void make(const std::string& path, const Made& m) {
  hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  hsize_t shape[2] = {m.shape_rows, 2}, written[2] = {m.rows, 2}, start[2] = {0, 0};
  hid_t space = H5Screate_simple(2, shape, nullptr), list = H5Pcreate(H5P_DATASET_CREATE);
  m.prepare(list);
  hid_t set = H5Dcreate2(file, "x", m.type, space, H5P_DEFAULT, list, H5P_DEFAULT);
  EXPECT_GE(set, 0);
  if (m.rows) {
    std::vector<int32_t> values(m.rows * 2);
    for (size_t i = 0; i < values.size(); ++i) values[i] = int32_t(i);
    hid_t memory = H5Screate_simple(2, written, nullptr);
    H5Sselect_hyperslab(space, H5S_SELECT_SET, start, nullptr, written, nullptr);
    EXPECT_GE(H5Dwrite(set, H5T_NATIVE_INT32, memory, space, H5P_DEFAULT, values.data()), 0);
    H5Sclose(memory);
  }
  H5Dclose(set);
  H5Pclose(list);
  H5Sclose(space);
  H5Fclose(file);
}

// Maps rows [to, to + 2) of a virtual dataset of 4 rows to rows [from, from + 2) of a source of
// `source_rows` rows. A source of 2 rows is mapped whole.
void add_part(hid_t list, const std::string& file, hsize_t to, hsize_t from = 0,
              hsize_t source_rows = 4) {
  hsize_t shape[2] = {4, 2}, source[2] = {source_rows, 2}, part[2] = {2, 2};
  hsize_t first[2] = {to, 0}, source_first[2] = {from, 0};
  hid_t whole = H5Screate_simple(2, shape, nullptr), other = H5Screate_simple(2, source, nullptr);
  H5Sselect_hyperslab(whole, H5S_SELECT_SET, first, nullptr, part, nullptr);
  if (source_rows > 2)
    H5Sselect_hyperslab(other, H5S_SELECT_SET, source_first, nullptr, part, nullptr);
  EXPECT_GE(H5Pset_virtual(list, whole, file.c_str(), "x", other), 0);
  H5Sclose(whole);
  H5Sclose(other);
}

struct StoredTest : testing::Test {
  test::TemporaryDirectory dir;
  Hdf5Options options;
  StoredTest() {
    options.path = dir / "all.h5";
    options.fields = {{"x", "x"}};
  }
  std::vector<int> values(const OpenContext& context = {}) {
    std::vector<int> out;
    std::unique_ptr<Source> source = options.open(context);
    for (int64_t i = 0; i < source->size(); ++i) {
      const Sample s = source->read(i);
      const Array& a = std::get<Array>(s.at("x"));
      out.insert(out.end(), a.i32(), a.i32() + a.count());
    }
    EXPECT_EQ(options.rows_problem(options.path), "");
    return out;
  }
  void refused(std::vector<std::string> parts) {
    parts.push_back("dataset /x");
    expect_error(Exit::data, parts, [&] { options.open({}); });
    for (const std::string& part : parts)
      EXPECT_NE(options.rows_problem(options.path).find(part), std::string::npos) << part;
  }
};

using Numbers = std::vector<int>;
const Numbers kAll{0, 1, 2, 3, 4, 5, 6, 7};

TEST_F(StoredTest, SourcesOfVirtualDatasets) {
  make(dir / "a.h5", {});
  make(dir / "b.h5", {});
  auto parts = [&](const std::string& second, hsize_t from = 2, hsize_t rows = 4) {
    make(options.path, {.prepare =
                            [&](hid_t list) {
                              add_part(list, "a.h5", 0);
                              if (!second.empty()) add_part(list, second, 2, from, rows);
                            },
                        .rows = 0});
  };
  parts("b.h5");
  EXPECT_EQ(values(), kAll);
  // Copies on local disk have no source files next to them.
  const std::string stage = dir / "stage";
  stage_files(options.files(), stage, 1);
  EXPECT_EQ(values({.stage_dir = stage}), kAll);
  std::filesystem::rename(dir / "b.h5", dir / "c.h5");
  refused({"'b.h5', which does not exist", "HDF5_VDS_PREFIX"});
  base::set_rank(1, 2);
  expect_error(Exit::data, {"'b.h5'"}, [&] { options.open({}); });
  base::set_rank(0, 1);
  parts("c.h5", 4, 6);
  refused({"dataset 'x' of 'c.h5'", "smaller than the part"});
  parts("");
  refused({"4 of its 8 elements have no source"});
  make(dir / "b.h5", {.rows = 0});
  parts("b.h5");
  expect_error(Exit::data, {"b.h5: dataset x", "never written"}, [&] { options.open({}); });
  parts("");
  std::filesystem::rename(options.path, dir / "c.h5");
  parts("c.h5");  // a virtual dataset as a source
  expect_error(Exit::data, {"c.h5: dataset x", "no source"}, [&] { options.open({}); });
}

// Overlapping parts do not fill a gap.
TEST_F(StoredTest, PartsOfVirtualDatasets) {
  make(dir / "a.h5", {});
  make(dir / "two.h5", {.shape_rows = 2, .rows = 2});
  make(dir / "one.h5", {.shape_rows = 1, .rows = 1});
  auto parts = [&](const std::vector<std::pair<const char*, hsize_t>>& list) {
    auto prepare = [&](hid_t to) {
      for (const auto& [file, row] : list)
        add_part(to, file, row, 0, file == std::string("a.h5") ? 4 : 2);
    };
    make(options.path, {.prepare = prepare, .rows = 0});
  };
  parts({{"a.h5", 0}, {"two.h5", 2}});
  EXPECT_EQ(values(), (Numbers{0, 1, 2, 3, 0, 1, 2, 3}));
  parts({{"a.h5", 1}, {"a.h5", 0}, {"two.h5", 2}});
  EXPECT_EQ(values().size(), 8u);
  parts({{"a.h5", 0}, {"a.h5", 0}});
  refused({"4 of its 8 elements have no source"});
  parts({{"a.h5", 0}, {"two.h5", 1}, {"a.h5", 0}});
  refused({"2 of its 8 elements have no source"});
  parts({{"a.h5", 0}, {"one.h5", 2}});  // the whole source, which is too small
  refused({"dataset 'x' of 'one.h5'", "smaller than the part"});
}

// The dataset maps a whole source, which has grown since then.
TEST_F(StoredTest, SourcesThatHaveGrown) {
  auto source = [&](hsize_t rows, hsize_t columns) {
    hid_t file = H5Fcreate((dir / "grown.h5").c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    hsize_t shape[2] = {rows, columns};
    hid_t space = H5Screate_simple(2, shape, nullptr);
    hid_t set = H5Dcreate2(file, "x", H5T_STD_I32LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    std::vector<int32_t> values(rows * columns);
    for (size_t i = 0; i < values.size(); ++i) values[i] = int32_t(i);
    EXPECT_GE(H5Dwrite(set, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
    H5Dclose(set);
    H5Sclose(space);
    H5Fclose(file);
  };
  make(dir / "a.h5", {});
  auto prepare = [&](hid_t to) {
    add_part(to, "grown.h5", 0, 0, 2);
    add_part(to, "a.h5", 2, 2);
  };
  source(2, 2);
  make(options.path, {.prepare = prepare, .rows = 0});
  EXPECT_EQ(values(), kAll);
  source(5, 2);  // more rows behind the mapped ones
  EXPECT_EQ(values(), kAll);
  source(2, 3);  // HDF5 would take 0, 1, 2, 3 for rows 0, 1 and 3, 4
  refused(
      {"dataset 'x' of 'grown.h5'", "has rows of another size than the virtual dataset expects"});
}

TEST_F(StoredTest, ExternalFiles) {
  const std::string raw = dir / "raw.bin";
  make(options.path, {.prepare = [&](hid_t list) { H5Pset_external(list, raw.c_str(), 0, 32); }});
  EXPECT_EQ(values(), kAll);
  const std::string bytes = test::read_file(raw);
  test::write_file(raw, bytes.substr(0, 20));
  refused({"raw.bin' has only 20 of 32 bytes"});
  std::filesystem::remove(raw);
  refused({"raw.bin' cannot be read", "HDF5_EXTFILE_PREFIX"});
}

TEST_F(StoredTest, DataThatWasNeverWritten) {
  make(options.path, {.rows = 0});
  refused({"was never written"});
  auto chunks = [](hid_t list) {
    const hsize_t chunk[2] = {2, 1};
    H5Pset_chunk(list, 2, chunk);
  };
  make(options.path, {.prepare = chunks});
  EXPECT_EQ(values(), kAll);
  make(options.path, {.prepare = chunks, .shape_rows = 7, .rows = 4});
  refused({"4 of its 8 chunks were never written, the first at row 4"});
  make(options.path, {.prepare = chunks, .rows = 0});
  refused({"4 of its 4 chunks", "row 0"});
  make(options.path, {.shape_rows = 0, .rows = 0});
  expect_error(Exit::data, {"holds no samples"}, [&] { options.open({}); });
}

// A filter that only its writer's library has.
TEST_F(StoredTest, FiltersThatTheLibraryLacks) {
  const H5Z_class2_t own{
      H5Z_CLASS_T_VERS,
      32001,
      1,
      1,
      "blosc",
      nullptr,
      nullptr,
      [](unsigned, size_t, const unsigned*, size_t bytes, size_t*, void**) { return bytes; }};
  ASSERT_GE(H5Zregister(&own), 0);
  make(options.path, {.prepare = [](hid_t list) {
         const hsize_t chunk[2] = {2, 2};
         H5Pset_chunk(list, 2, chunk);
         H5Pset_filter(list, 32001, H5Z_FLAG_OPTIONAL, 0, nullptr);
       }});
  EXPECT_EQ(values(), kAll);
  H5Zunregister(32001);
  refused({"compressed with blosc (filter 32001)", "gzip", "HDF5_PLUGIN_PATH"});
  expect_error(Exit::data, {"compressed with blosc"}, [&] { options.spec(); });
}

// A file of h5py with chunks of several sizes, some of them not compressed. A part of it is
// damaged.
TEST_F(StoredTest, Lzf) {
  const std::string whole = test::read_file(tests::source_file("tests/data/lzf.h5"));
  auto read = [&](const std::string& dataset, const std::string& file) {
    test::write_file(options.path, file);
    options.fields = {{"x", dataset}};
    std::vector<int> out;
    std::unique_ptr<Source> source = options.open({});
    for (int64_t i = 0; i < source->size(); ++i) {
      const Sample s = source->read(i);
      const Array& a = std::get<Array>(s.at("x"));
      out.insert(out.end(), a.i32(), a.i32() + a.count());
    }
    return out;
  };
  read("plain_a", whole);  // the reader adds its filters
  if (H5Zfilter_avail(32000) <= 0) GTEST_SKIP() << "built without liblzf";
  for (const char* set : {"a", "noise"}) {
    const std::vector<int> want = read(fmt::format("plain_{}", set), whole);
    for (int i = 0; i < 4; ++i)
      EXPECT_EQ(read(fmt::format("{}{}", set, i), whole), want) << set << i;
  }
  // The chunk copies bytes from before its own begin.
  hid_t file = H5Fopen(options.path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  hid_t a2 = H5Dopen2(file, "a2", H5P_DEFAULT);
  const hsize_t at[2] = {0, 0};
  unsigned mask = 0;
  haddr_t offset = 0;
  hsize_t size = 0;
  EXPECT_GE(H5Dget_chunk_info_by_coord(a2, at, &mask, &offset, &size), 0);
  H5Dclose(a2);
  H5Fclose(file);
  std::string damaged = whole;
  damaged.replace(offset, 3, "\x20\x09\x01");
  expect_error(Exit::data, {"a chunk of lzf is damaged"}, [&] { read("a2", damaged); });
}

// Programs in Fortran fill texts up with spaces, and those in C leave anything after the end.
TEST_F(StoredTest, PaddingOfTexts) {
  const std::string stored = std::string("one   ") + "two wo" + std::string("a\0b\0xy", 6);
  auto texts = [&](H5T_str_t padding) {
    hid_t file = H5Fcreate(options.path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, 6);
    H5Tset_strpad(type, padding);
    const hsize_t rows = 3;
    hid_t space = H5Screate_simple(1, &rows, nullptr);
    hid_t set = H5Dcreate2(file, "x", type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    EXPECT_GE(H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, stored.data()), 0);
    H5Dclose(set);
    H5Sclose(space);
    H5Tclose(type);
    H5Fclose(file);
    std::unique_ptr<Source> source = options.open({});
    std::vector<std::string> out;
    for (int64_t i = 0; i < source->size(); ++i)
      out.push_back(std::get<std::string>(source->read(i).at("x")));
    return out;
  };
  const std::string zeros = stored.substr(12);
  EXPECT_EQ(texts(H5T_STR_SPACEPAD), (std::vector<std::string>{"one", "two wo", zeros}));
  EXPECT_EQ(texts(H5T_STR_NULLPAD), (std::vector<std::string>{"one   ", "two wo", zeros}));
  EXPECT_EQ(texts(H5T_STR_NULLTERM), (std::vector<std::string>{"one   ", "two wo", "a"}));
}

}  // namespace
}  // namespace data
