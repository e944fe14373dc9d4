// SPDX-License-Identifier: Apache-2.0
// Tests the classes of all samples: of whole numbers and texts, with any number of threads, and of
// each source without reading its images.
#include "data/sources/classes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "data/sources/class_folder.hpp"
#include "data/sources/folder.hpp"
#include "data/sources/webdataset.hpp"
#include "support.hpp"

namespace data {
namespace {

class Labels : public Source {
 public:
  explicit Labels(std::vector<std::string> labels) : labels_(std::move(labels)) {}
  int64_t size() const override { return int64_t(labels_.size()); }
  std::string key(int64_t index) const override { return fmt::format("n:{}", index); }
  std::string summary() const override { return "labels"; }
  std::string folder() const override { return place; }
  std::optional<Origin> origin(const std::string& field) const override {
    return Origin{"labels " + field, state};
  }
  Sample read(int64_t index) const override {
    ++reads;
    const std::string& label = labels_[size_t(index)];
    if (label == "broken") base::fail(base::Exit::data, "it is broken");
    Array number(device::DType::i32, {});
    number.i32()[0] = int32_t(label.size());
    return {{"name", " " + label + " "}, {"length", std::move(number)}};
  }
  std::string place = {};
  uint64_t state = 1;
  mutable std::atomic<int64_t> reads{0};

 private:
  std::vector<std::string> labels_;
};

const Spec kSpec = {{"name", FieldSpec::characters()},
                    {"names", FieldSpec::list_of_texts()},
                    {"length", FieldSpec::array(device::DType::i32, {})}};

TEST(Classes, OfTextsAndNumbersForAnyThreads) {
  const Labels source({"owl", "cat", "owl", "zebra", "ant", "owl", "cat"});
  for (int threads : {1, 2, 3, 9}) {
    const Classes names = read_classes(source, kSpec, "name", {.threads = threads});
    EXPECT_EQ(names.names(), (std::vector<std::string>{"ant", "cat", "owl", "zebra"}));
    EXPECT_EQ(names.sizes(), (std::vector<int64_t>{1, 2, 3, 1}));
    std::vector<uint32_t> numbers;
    for (int64_t i = 0; i < names.samples(); ++i) numbers.push_back(names.of_sample(i));
    EXPECT_EQ(numbers, (std::vector<uint32_t>{2, 1, 2, 3, 0, 2, 1}));
    const Classes lengths = read_classes(source, kSpec, "length", {.threads = threads});
    EXPECT_EQ(lengths.names(), (std::vector<std::string>{"3", "5"}));
    EXPECT_EQ(lengths.sizes(), (std::vector<int64_t>{6, 1}));
  }
}

void expect_equal(const Classes& found, const Classes& want) {
  EXPECT_EQ(found.names(), want.names());
  EXPECT_EQ(found.sizes(), want.sizes());
  ASSERT_EQ(found.samples(), want.samples());
  std::vector<int64_t> seen(found.names().size());
  for (int64_t i = 0; i < found.samples(); ++i) {
    const uint32_t c = found.of_sample(i);
    EXPECT_EQ(c, want.of_sample(i)) << i;
    EXPECT_EQ(found.sample(c, seen[c]++), i);
  }
}

// A set of 23 samples in pieces of 5. Each piece has classes of its own.
TEST(Classes, PiecesAreReadOnceAndKeptInFiles) {
  std::vector<std::string> labels;
  for (int i = 0; i < 23; ++i)
    labels.push_back(std::string(size_t(1 + (i * i / 3 + i / 8) % 6), 'x'));
  const Classes plain = read_classes(Labels(labels), kSpec, "name", {});
  EXPECT_EQ(plain.print(), 0u);
  test::TemporaryDirectory here;
  Labels source(labels);
  auto read = [&](int64_t reads, const OpenContext& context = {.threads = 2}) {
    source.reads = 0;
    Classes found = read_classes(source, kSpec, "name", context, 5);
    EXPECT_EQ(source.reads, reads);
    expect_equal(found, plain);
    return found.print();
  };
  EXPECT_EQ(read(23), 0u) << "no place takes a file";
  source.place = here.path();
  EXPECT_EQ(read(23, {.write_index = false}), 0u);
  const uint64_t first = read(23);
  EXPECT_NE(first, 0u);
  EXPECT_EQ(read(0), first);
  source.state = 2;  // its files have changed
  const uint64_t print = read(23);
  EXPECT_NE(print, first);
  EXPECT_EQ(read(0), print);

  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(here.path()))
    files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  ASSERT_EQ(files.size(), 5u);
  EXPECT_TRUE(files[4].ends_with(".000004.classes"));
  std::string damaged = test::read_file(files[4]);
  for (const size_t at : {size_t{30}, damaged.size() / 2, damaged.size() - 1}) {
    std::string bytes = damaged;
    bytes[at] ^= 1;
    test::write_file(files[4], bytes);
    read(3);
    EXPECT_EQ(read(0), print);
  }
  test::write_file(files[4], damaged.substr(0, 40));
  read(3);
}

TEST(Classes, Refusals) {
  const Labels source({"owl", "broken"});
  test::expect_error(base::Exit::config, {"no field 'nam'", "nearest is 'name'"},
                     [&] { read_classes(source, kSpec, "nam", {}); });
  test::expect_error(base::Exit::config, {"'names' is texts", "sample = \"caption\""},
                     [&] { read_classes(source, kSpec, "names", {}); });
  for (int threads : {1, 2})
    test::expect_error(base::Exit::data, {"n:1: it is broken"},
                       [&] { read_classes(source, kSpec, "name", {.threads = threads}); });
}

// Broken images do not matter: only labels are read.
TEST(Classes, OfFoldersTablesAndTars) {
  test::TemporaryDirectory here;
  for (const char* name : {"images/owl", "images/cat"})
    std::filesystem::create_directories(here / name);
  for (const char* name : {"images/owl/1.png", "images/owl/2.png", "images/cat/1.png"})
    test::write_file(here / name, "");
  const OpenContext context;
  auto sizes = [&](const SourceOptions& options, const std::string& field) {
    return read_classes(*options.open(context), options.spec(), field, {.threads = 2}).sizes();
  };
  const std::vector<int64_t> want = {1, 2};

  ClassFolderOptions folder;
  folder.path = here / "images";
  EXPECT_EQ(sizes(folder, "label"), want);

  test::write_file(here / "images/labels.tsv",
                   "image\tcaption\nowl/1.png\towl\nowl/2.png\towl\ncat/1.png\tcat\n");
  FolderOptions table;
  table.captions = here / "images/labels.tsv";
  table.by_image = false;
  EXPECT_EQ(sizes(table, "text"), want);

  test::TarText tar;
  for (const char* key : {"a", "b", "c"}) {
    tar.add(std::string(key) + ".png", "");
    tar.add(std::string(key) + ".cls", *key == 'a' ? "4" : "7");
  }
  test::write_file(here / "x.tar", tar.end());
  WebdatasetOptions tars;
  tars.path = here / "x.tar";
  tars.fields = {{"image", "png"}, {"label", "cls"}};
  EXPECT_EQ(sizes(tars, "label"), want);
  const std::unique_ptr<Source> opened = tars.open(context);
  const auto origin = opened->origin("label");
  ASSERT_TRUE(origin);
  EXPECT_EQ(opened->folder(), here.path());
  for (const int64_t begin : {0, 1, 3})
    for (int64_t end = begin; end <= 3; ++end) {
      std::vector<int32_t> found, want_labels;
      opened->fields(begin, end, "label", [&](const Value& value) {
        found.push_back(*std::get<Array>(value).i32());
        return found.size() < 2;
      });
      for (int64_t i = begin; i < std::min(end, begin + 2); ++i)
        want_labels.push_back(*std::get<Array>(opened->field(i, "label")).i32());
      EXPECT_EQ(found, want_labels);
    }
}

}  // namespace
}  // namespace data
