// SPDX-License-Identifier: Apache-2.0
// Tests classes of images: sub-folders, lists of names, numbers and names in texts.
#include <gtest/gtest.h>

#include "data/ops/pipeline.hpp"
#include "data/sources/class_folder.hpp"
#include "data/sources/class_names.hpp"
#include "support.hpp"

namespace data {
namespace {

using base::Exit;
using test::expect_error;

struct ClassFolderTest : testing::Test {
  test::TemporaryDirectory dir;
  ClassFolderOptions options;
  ClassFolderTest() {
    for (std::string name :
         {"dog/b.jpg", "cat/2.PNG", "cat/1.png", "cat/more/0.webp", "ant/x.gif", "ant/notes.txt"}) {
      const std::string path = dir / ("images/" + name);
      std::filesystem::create_directories(std::filesystem::path(path).parent_path());
      test::write_file(path, "bytes of " + name);
    }
    options.path = dir / "images";
  }
  std::vector<std::string> listed() {
    std::vector<std::string> out;
    const std::unique_ptr<Source> source = options.open({});
    for (int64_t i = 0; i < source->size(); ++i) {
      Sample s = source->read(i);
      const Bytes& bytes = std::get<Bytes>(s["image"]);
      const std::string name(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      EXPECT_TRUE(source->key(i).ends_with(name.substr(name.find('/')))) << source->key(i);
      out.push_back(fmt::format("{} {}", *std::get<Array>(s["label"]).i32(), name.substr(9)));
      for (auto& [field, known] : options.spec()) EXPECT_EQ(mismatch(known, s[field]), "") << field;
    }
    return out;
  }
};

using List = std::vector<std::string>;

TEST_F(ClassFolderTest, SubFoldersSortedAreTheClasses) {
  EXPECT_EQ(listed(), (List{"0 ant/x.gif", "1 cat/1.png", "1 cat/2.PNG", "1 cat/more/0.webp",
                            "2 dog/b.jpg"}));
  EXPECT_EQ(options.open({})->summary(),
            "5 images, 3 classes: ant, cat, dog; 1 files that are no images left out");
  EXPECT_EQ(options.spec().at("label").limit, 3);
  EXPECT_EQ(options.files().size(), 5u);
  const uint64_t print = options.open({})->fingerprint();
  std::filesystem::rename(dir / "images/ant", dir / "images/eel");
  EXPECT_EQ(listed()[0], "0 cat/1.png")
      << "another folder changes the numbers, so related sets need one list";
  EXPECT_NE(options.open({})->fingerprint(), print);
}

TEST_F(ClassFolderTest, OneListOfNamesForSeveralSets) {
  test::write_file(dir / "names.txt", "dog\n\n cat \r\nowl\nant\n");
  options.classes = dir / "names.txt";
  EXPECT_EQ(listed(), (List{"0 dog/b.jpg", "1 cat/1.png", "1 cat/2.PNG", "1 cat/more/0.webp",
                            "3 ant/x.gif"}));
  EXPECT_EQ(options.spec().at("label").limit, 4);
  EXPECT_NE(options.open({})->summary().find("1 classes without an image"), std::string::npos);
  std::filesystem::create_directories(dir / "few/cat");
  std::filesystem::copy(dir / "images/cat/1.png", dir / "few/cat/1.png");
  options.classes = options.path;
  options.path = dir / "few";
  EXPECT_EQ(listed(), List{"1 cat/1.png"})
      << "the classes come from the sub-folders of another folder";
}

TEST_F(ClassFolderTest, NamesWhatIsWrong) {
  test::write_file(dir / "names.txt", "dog\ncta\nant\n");
  options.classes = dir / "names.txt";
  expect_error(Exit::data, {"\"cat\" is none of the 3 classes", "names.txt", "nearest is 'cta'"},
               [&] { options.open({}); });
  test::write_file(dir / "names.txt", "dog\ncat\ndog\n");
  expect_error(Exit::data, {"names.txt", "\"dog\" twice"}, [&] { options.open({}); });
  test::write_file(dir / "names.txt", "\n \n");
  expect_error(Exit::data, {"names.txt", "holds no class name"}, [&] { options.open({}); });
  options.classes = dir / "none.txt";
  expect_error(Exit::data, {"no file or folder", "none.txt"}, [&] { options.open({}); });
  EXPECT_EQ(options.spec().at("label").limit, 0) << "a deck may be checked without its data";
  options.classes = "";
  options.path = dir / "images/cat/more";
  expect_error(Exit::data, {"has no sub-folder"}, [&] { options.open({}); });
  std::filesystem::create_directories(dir / "empty/cat");
  options.path = dir / "empty";
  expect_error(Exit::data, {"hold no image"}, [&] { options.open({}); });
}

int32_t number_of(const std::string& op, const std::string& text) {
  Pipeline pipeline(op, {{"text", FieldSpec::characters()}}, {});
  Sample sample;
  sample["text"] = text;
  pipeline.apply(sample, 0);
  EXPECT_EQ(mismatch(pipeline.spec().at("label"), sample.at("label")), "");
  return *std::get<Array>(sample.at("label")).i32();
}

TEST(ClassNumber, OfNumbersAndOfNames) {
  EXPECT_EQ(number_of("class_number()", " 17\n"), 17);
  for (const char* text : {"", "1.5", "cat", "1 2", "99999999999"})
    expect_error(Exit::data, {"class_number", "not a whole number", "classes="},
                 [&] { number_of("class_number()", text); });
  test::TemporaryDirectory dir;
  EXPECT_EQ(number_of("class_number()", "17.0"), 17);
  test::write_file(dir / "names.txt",
                   "\xEF\xBB\xBF"
                   "dog\r\ncat\r\ncaf\u00e9\r\n");
  const std::string op = fmt::format("class_number(\"{}\")", dir / "names.txt");
  EXPECT_EQ(number_of(op, "cat"), 1);
  EXPECT_EQ(number_of(op, "dog"), 0) << "a byte order mark is no part of the first name";
  expect_error(Exit::data, {"\"cow\" is none of the 3 classes"}, [&] { number_of(op, "cow"); });
  expect_error(Exit::data, {"\"caf\u00e9\" there has other capitals or another form of Unicode"},
               [&] { number_of(op, "cafe\u0301"); });
  EXPECT_EQ(Pipeline(op, {{"text", FieldSpec::characters()}}, {}).spec().at("label").limit, 3);
  // A check without files does not know the number of names.
  EXPECT_EQ(
      Pipeline("class_number(\"none.txt\")", {{"text", FieldSpec::characters()}}, {.open = false})
          .spec()
          .at("label")
          .limit,
      0);
  expect_error(Exit::config, {"'text' is texts", "choice"}, [&] {
    Pipeline(op, {{"text", FieldSpec::list_of_texts()}}, {});
  });
}

}  // namespace
}  // namespace data
