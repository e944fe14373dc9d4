// SPDX-License-Identifier: Apache-2.0
// Tests the classes of all samples: of whole numbers and texts, with any number of threads, and of
// each source without reading its images.
#include "data/sources/classes.hpp"

#include <gtest/gtest.h>

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
  Sample read(int64_t index) const override {
    const std::string& label = labels_[size_t(index)];
    if (label == "broken") base::fail(base::Exit::data, "it is broken");
    Array number(device::DType::i32, {});
    number.i32()[0] = int32_t(label.size());
    return {{"name", " " + label + " "}, {"length", std::move(number)}};
  }

 private:
  std::vector<std::string> labels_;
};

const Spec kSpec = {{"name", FieldSpec::characters()},
                    {"names", FieldSpec::list_of_texts()},
                    {"length", FieldSpec::array(device::DType::i32, {})}};

TEST(Classes, OfTextsAndNumbersForAnyThreads) {
  const Labels source({"owl", "cat", "owl", "zebra", "ant", "owl", "cat"});
  for (int threads : {1, 2, 3, 9}) {
    const Classes names = read_classes(source, kSpec, "name", threads, {});
    EXPECT_EQ(names.names, (std::vector<std::string>{"ant", "cat", "owl", "zebra"}));
    EXPECT_EQ(names.sizes, (std::vector<int64_t>{1, 2, 3, 1}));
    std::vector<uint32_t> numbers;
    for (int64_t i = 0; i < names.of_sample.size(); ++i) numbers.push_back(names.of_sample[i]);
    EXPECT_EQ(numbers, (std::vector<uint32_t>{2, 1, 2, 3, 0, 2, 1}));
    const Classes lengths = read_classes(source, kSpec, "length", threads, {});
    EXPECT_EQ(lengths.names, (std::vector<std::string>{"3", "5"}));
    EXPECT_EQ(lengths.sizes, (std::vector<int64_t>{6, 1}));
  }
}

TEST(Classes, Refusals) {
  const Labels source({"owl", "broken"});
  test::expect_error(base::Exit::config, {"no field 'nam'", "nearest is 'name'"},
                     [&] { read_classes(source, kSpec, "nam", 1, {}); });
  test::expect_error(base::Exit::config, {"'names' is texts", "sample = \"caption\""},
                     [&] { read_classes(source, kSpec, "names", 1, {}); });
  for (int threads : {1, 2})
    test::expect_error(base::Exit::data, {"n:1: it is broken"},
                       [&] { read_classes(source, kSpec, "name", threads, {}); });
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
    return read_classes(*options.open(context), options.spec(), field, 2, {}).sizes;
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
}

}  // namespace
}  // namespace data
