// SPDX-License-Identifier: Apache-2.0
// Tests the reader of big_vision's chunked checkpoints on folders that are written value by value.
// tests/run/export_test.py reads one that TensorStore wrote.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.hpp"
#include "checkpoint/weight_file.hpp"
#include "weight_files.hpp"

namespace {

namespace fs = std::filesystem;
using ChunkSizes = std::vector<int64_t>;

// A zstd frame with one block that is stored as it is.
std::string zstd_frame(const std::string& bytes) {
  const auto number = [](uint32_t value, size_t length) {
    return std::string(reinterpret_cast<const char*>(&value), length);
  };
  return "\x28\xb5\x2f\xfd\xa0" + number(uint32_t(bytes.size()), 4) +
         number(uint32_t(bytes.size()) << 3 | 1, 3) + bytes;
}

struct ChunkedArray {
  std::string name;
  ChunkSizes shape, chunks;
  std::string fill = "null", separator = ".";
  bool packed = false;
  std::string type = "<f4";
  std::string description() const { return description(type); }
  std::string description(const std::string& dtype) const {
    return fmt::format(
        R"({{"zarr_format":2,"shape":[{}],"chunks":[{}],"dtype":"{}","order":"C","filters":null,)"
        R"("compressor":{},"fill_value":{},"dimension_separator":"{}"}})",
        fmt::join(shape, ","), fmt::join(chunks, ","), dtype,
        packed ? R"({"id":"zstd","level":1})" : "null", fill, separator);
  }
};

// Counts up an index; returns false after the last one.
bool next_index(ChunkSizes& at, const ChunkSizes& sizes) {
  for (size_t axis = at.size(); axis-- > 0;) {
    if (++at[axis] < sizes[axis]) return true;
    at[axis] = 0;
  }
  return false;
}

class ChunkedCheckpoint : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "trainer_chunked_XXXXXX";
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void describe(const std::string& name, const std::string& description) {
    fs::create_directories(folder_ + "/" + name);
    tests::write(folder_ + "/" + name + "/.zarray", description);
  }

  // Writes an array whose element k is k + 1; values beyond the edge of the tensor are -1.
  void write(const ChunkedArray& array) {
    describe(array.name, array.description());
    ChunkSizes grid;
    for (size_t axis = 0; axis < array.shape.size(); ++axis)
      grid.push_back((array.shape[axis] + array.chunks[axis] - 1) / array.chunks[axis]);
    ChunkSizes place(grid.size(), 0);
    do {
      std::vector<float> values;
      ChunkSizes inside(grid.size(), 0);
      do {
        int64_t index = 0;
        bool beyond = false;
        for (size_t axis = 0; axis < grid.size(); ++axis) {
          const int64_t at = place[axis] * array.chunks[axis] + inside[axis];
          beyond = beyond || at >= array.shape[axis];
          index = index * array.shape[axis] + at;
        }
        values.push_back(beyond ? -1.0f : float(index + 1));
      } while (next_index(inside, array.chunks));
      const std::string name =
          grid.empty() ? "0" : fmt::format("{}", fmt::join(place, array.separator));
      const fs::path file = fs::path(folder_) / array.name / name;
      fs::create_directories(file.parent_path());
      std::string bytes = tests::bytes_of(values);
      for (size_t at = 0; array.type == ">f4" && at < bytes.size(); at += 4)
        std::reverse(bytes.begin() + int64_t(at), bytes.begin() + int64_t(at) + 4);
      tests::write(file, array.packed ? zstd_frame(bytes) : bytes);
    } while (next_index(place, grid));
  }

  // Reads the tensor `index` in pieces of that many elements.
  std::vector<float> read(size_t index, int64_t piece) const {
    auto file = checkpoint::open_weights(folder_);
    std::vector<float> out(size_t(file->tensors().at(index).count()));
    file->begin(index);
    for (int64_t at = 0; at < int64_t(out.size()); at += piece)
      file->read(out.data() + at, std::min(piece, int64_t(out.size()) - at));
    return out;
  }

  // Returns the reason that the folder is refused, or "". Reads its first tensor.
  std::string problem() const {
    try {
      read(0, 1 << 20);
      return "";
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::Exit::checkpoint) << e.what();
      EXPECT_EQ(std::string(e.what()).find(folder_), 0u) << e.what();
      return e.what();
    }
  }
  void refused(const std::string& fragment) const {
    const std::string text = problem();
    EXPECT_NE(text.find(fragment), text.npos) << "'" << fragment << "' is not in '" << text << "'";
  }

  std::string folder_;
};

TEST_F(ChunkedCheckpoint, EveryGridOfChunks) {
  const std::vector<std::pair<ChunkSizes, ChunkSizes>> cases = {
      {{}, {}},
      {{7}, {7}},
      {{7}, {3}},
      {{7}, {1}},
      {{4, 6}, {4, 6}},
      {{4, 6}, {2, 6}},
      {{4, 6}, {4, 2}},
      {{5, 7}, {2, 3}},
      {{3, 4, 5}, {3, 1, 5}},
      {{3, 4, 5}, {2, 3, 2}},
      {{2, 3, 4, 5}, {1, 2, 3, 4}},
  };
  for (const auto& [shape, chunks] : cases)
    for (const char* separator : {".", "/"})
      for (bool packed : {false, true}) {
        SCOPED_TRACE(fmt::format("[{}] in [{}], {}, {}", fmt::join(shape, ", "),
                                 fmt::join(chunks, ", "), separator, packed));
        write({"params~a~kernel", shape, chunks, "null", separator, packed});
        for (int64_t piece : {1, 5, 1000}) {
          const std::vector<float> values = read(0, piece);
          for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], float(i + 1)) << i;
        }
        fs::remove_all(folder_ + "/params~a~kernel");
      }
}

// Arrays of other machines have the most significant byte first.
TEST_F(ChunkedCheckpoint, BigEndianArrays) {
  for (bool packed : {false, true}) {
    write({"params~a", {3, 4}, {2, 3}, "null", ".", packed, ">f4"});
    const std::vector<float> values = read(0, 5);
    for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], float(i + 1)) << i;
  }
}

TEST_F(ChunkedCheckpoint, NamesAndTypes) {
  write({"params~a~b_0~kernel", {2, 3}, {2, 2}, "null", ".", true});
  describe("opt~4~0~0", ChunkedArray{"", {}, {}}.description("<i4"));
  describe("opt~1~0~2~1~a", ChunkedArray{"", {2}, {2}}.description("bfloat16"));
  tests::write(folder_ + "/opt~1~0~2~1~a/0", std::string("\x80\x3f\x00\xc0", 4));
  tests::write(folder_ + "/note.txt", "a file beside the arrays");
  auto file = checkpoint::open_weights(folder_);
  ASSERT_EQ(file->tensors().size(), 3u);
  EXPECT_EQ(file->tensors()[0].name, "opt/1/0/2/1/a");
  EXPECT_EQ(read(0, 2), (std::vector<float>{1, -2}));
  EXPECT_FALSE(file->tensors()[1].type);
  EXPECT_EQ(file->tensors()[2].name, "params/a/b_0/kernel");
  EXPECT_EQ(file->tensors()[2].shape, (ChunkSizes{2, 3}));
}

TEST_F(ChunkedCheckpoint, TheNewestOfARunIsTaken) {
  const std::string base = folder_ + "/checkpoint.bv";
  const std::string folder = folder_;
  folder_ = base + "-000000020-tmp";
  write({"params~a", {3}, {3}});
  folder_ = folder;
  tests::write(base + "-LAST", "000000020-tmp\n");
  EXPECT_EQ(checkpoint::open_weights(base)->tensors().at(0).name, "params/a");
  for (const char* suffix : {"000000030", "", "../checkpoint.bv-000000020-tmp"}) {
    tests::write(base + "-LAST", suffix);
    EXPECT_THROW(checkpoint::open_weights(base), base::Error) << suffix;
  }
}

TEST_F(ChunkedCheckpoint, MissingChunks) {
  // Only a fill_value of zero replaces chunks: writers leave out those that are equal to it.
  for (const char* fill : {"null", "1.5", "\"NaN\"", "0", "0.0"}) {
    write({"params~a", {4}, {2}, fill});
    fs::remove(folder_ + "/params~a/1");
    if (fill[0] == '0')
      EXPECT_EQ(read(0, 4), (std::vector<float>{1, 2, 0, 0})) << fill;
    else
      refused("params/a: chunk 1 is missing");
  }
}

TEST_F(ChunkedCheckpoint, Damage) {
  const std::string values = tests::bytes_of(std::vector<float>{1, 2, 3});
  const std::string frame = zstd_frame(values);
  const std::string chunk = folder_ + "/params~a/0";
  const ChunkedArray packed{"params~a", {3}, {3}, "null", ".", true};
  write(packed);
  EXPECT_EQ(problem(), "");
  for (size_t cut = 0; cut < frame.size(); ++cut) {
    tests::write(chunk, frame.substr(0, cut));
    EXPECT_NE(problem(), "") << cut;
  }
  tests::write(chunk, values);
  refused("chunk 0 is not compressed by zstd");
  for (const std::string& other : {values + values, values.substr(4)}) {
    tests::write(chunk, zstd_frame(other));
    refused("does not hold the 12 bytes");
  }
  write({"params~a", {3}, {3}});
  tests::write(chunk, values + "x");
  refused("does not hold the 12 bytes");
  fs::create_directories(folder_ + "/params~b");
  refused("params~b has no .zarray");
}

TEST_F(ChunkedCheckpoint, HostileDescriptions) {
  const ChunkedArray good{"params~a", {4, 6}, {2, 6}};
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good.description();
    const size_t at = text.find(from);
    EXPECT_NE(at, text.npos) << from;
    return text.replace(at, from.size(), to);
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "not a JSON object"},
      {"[]", "not a JSON object"},
      {"{", "not a JSON object"},
      {"{}", "zarr_format"},
      {with("\"zarr_format\":2", "\"zarr_format\":3"), "zarr_format is not 2"},
      {with("\"C\"", "\"F\""), "order is not"},
      {with("\"filters\":null", "\"filters\":[{\"id\":\"delta\"}]"), "filters"},
      {with("[4,6]", "[4]"), "differ in length"},
      {with("[4,6]", "[-4,6]"), "impossible shape"},
      {with("[4,6]", "[4.5,6]"), "impossible shape"},
      {with("[4,6]", "7"), "shape is not a list"},
      {with("[4,6]", "[4294967296,4294967296]"), "impossible shape"},
      {with("[2,6]", "[0,6]"), "impossible chunks"},
      {with("[2,6]", "[2,7]"), "impossible chunks"},
      {with("[2,6]", "[18446744073709551615,6]"), "impossible chunks"},
      {with("\"compressor\":null", "\"compressor\":{\"id\":\"blosc\"}"), "blosc"},
      {with("\"compressor\":null", "\"compressor\":7"), "compressor 7"},
      {with("\".\"}", "\":\"}"), "dimension_separator"},
      {std::string(100000, ' '), "too large"},
      {"{\"filters\":" + std::string(60000, '['), "nested deeper"},
  };
  for (const auto& [text, fragment] : cases) {
    SCOPED_TRACE(text.substr(0, 200));
    write(good);
    describe("params~a", text);
    refused(fragment);
  }
}

}  // namespace
