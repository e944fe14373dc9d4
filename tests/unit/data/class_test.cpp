// SPDX-License-Identifier: Apache-2.0
// Tests classes of images: sub-folders, lists of names, numbers and names in texts.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "data/ops/pipeline.hpp"
#include "data/sources/class_folder.hpp"
#include "data/sources/class_names.hpp"
#include "data/sources/file.hpp"
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
            "5 images, 3 classes: ant, cat, dog; 1 files left out that are not images");
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

// Notebooks, version control and foreign systems leave hidden files and folders.
TEST_F(ClassFolderTest, HiddenFilesAndFoldersAreLeftOut) {
  const List before = listed();
  for (const char* name :
       {".ipynb_checkpoints/a.png", ".git/b.jpg", "cat/.thumbnails/1.png", "cat/._1.png",
        "ant/.DS_Store", "__MACOSX/x/1.png", "cat/@eaDir/1.png/THUMB.jpg", "#recycle/1.png",
        "$Recycle.Bin/1.png", "~snapshot/1.png", "__pycache__/a.pyc"}) {
    const std::string path = dir / (std::string("images/") + name);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    test::write_file(path, "hidden");
  }
  EXPECT_EQ(listed(), before);
  EXPECT_EQ(options.spec().at("label").limit, 3);
  EXPECT_EQ(options.open({})->summary(),
            "5 images, 3 classes: ant, cat, dog; 1 files left out that are not images; 3 hidden "
            "images or folders left out");
  test::write_file(dir / "names.txt", ".git\nant\ncat\ndog\n");
  options.classes = dir / "names.txt";
  EXPECT_EQ(options.open({})->size(), 6) << "a list may name such a class";
}

TEST_F(ClassFolderTest, EachFolderCountsOnce) {
  namespace fs = std::filesystem;
  const List before = listed();
  auto refused = [&](const std::string& target, const std::string& link,
                     std::vector<std::string> parts) {
    fs::create_directory_symlink(target, dir / ("images/" + link));
    SCOPED_TRACE(link);
    expect_error(Exit::data, parts, [&] { options.open({}); });
    expect_error(Exit::data, parts, [&] { options.files(); });
    fs::remove(dir / ("images/" + link));
  };
  refused("..", "cat/all", {"images/cat/all' is a link to", "images'", "count twice"});
  refused("../../..", "cat/up", {"images/cat/up' is a link to"});
  refused("/", "cat/root", {"images/cat/root' is a link to '/'"});
  refused(".", "cat/self", {"images/cat/self' is a link to", "images/cat'"});
  refused("../../dog", "cat/more/dogs", {"images/cat/more/dogs' is a link to", "images/dog'"});
  refused("cat", "kitten", {"images/kitten' is a link to", "images/cat'"});
  refused("dog", "a_first", {"images/a_first' is a link to", "images/dog'"});
  EXPECT_EQ(listed(), before);
  // Links to other places are followed.
  fs::create_directories(dir / "store");
  fs::rename(dir / "images/dog", dir / "store/dog");
  fs::create_directory_symlink(dir / "store/dog", dir / "images/dog");
  EXPECT_EQ(listed(), before);
}

TEST_F(ClassFolderTest, LinksThatLeadNowhere) {
  namespace fs = std::filesystem;
  fs::create_symlink("../../store/gone", dir / "images/cat/3.png");
  fs::create_symlink("4.png", dir / "images/cat/4.png");  // to itself
  fs::create_symlink("gone.txt", dir / "images/cat/notes.txt");
  expect_error(Exit::data,
               {"2 links lead nowhere: cat/3.png, cat/4.png, in '", "images'", "substitute"},
               [&] { options.open({}); });
  OpenContext context;
  context.substitutes = true;
  const std::unique_ptr<Source> source = options.open(context);
  ASSERT_EQ(source->size(), 7);
  EXPECT_NE(source->summary().find("2 links lead nowhere: cat/3.png, cat/4.png (bad samples)"),
            std::string::npos)
      << source->summary();
  for (int64_t i : {3, 4}) try {
      source->read(i);
      ADD_FAILURE() << source->key(i);
    } catch (const Unreadable& e) {
      ADD_FAILURE() << e.what();  // no other sample could take its place
    } catch (const base::Error& e) {
      EXPECT_EQ(std::string(e.what()), "there is no such file");
    }
  // A dangling link may have led to a folder of images or to a class. Without that class, the
  // numbers of others would change.
  fs::remove(dir / "images/cat/3.png");
  fs::remove(dir / "images/cat/4.png");
  fs::create_symlink("gone", dir / "images/cat/extra");
  expect_error(Exit::data, {"1 links lead nowhere: cat/extra"}, [&] { options.open({}); });
  fs::remove(dir / "images/cat/extra");
  fs::create_symlink("gone", dir / "images/bee");
  expect_error(Exit::data, {"images/bee' is a link that leads nowhere", "numbers"},
               [&] { options.open(context); });
}

TEST_F(ClassFolderTest, PipesAreNoImages) {
  namespace fs = std::filesystem;
  for (const char* name : {"cat/.hidden.png", "cat/notes", "cat/p.png"})
    ASSERT_EQ(::mkfifo((dir / (std::string("images/") + name)).c_str(), 0600), 0);
  auto refused = [&](const char* name) {
    expect_error(Exit::data, {name, "is a pipe, socket or device", "remove it"},
                 [&] { options.open({}); });
  };
  refused("images/cat/p.png'");
  fs::remove(dir / "images/cat/p.png");
  EXPECT_EQ(listed().size(), 5u);
  fs::create_symlink("notes", dir / "images/cat/link.png");
  refused("images/cat/link.png'");
}

TEST_F(ClassFolderTest, NamesWhatIsWrong) {
  test::write_file(dir / "names.txt", "dog\ncta\nant\n");
  options.classes = dir / "names.txt";
  expect_error(Exit::data, {"\"cat\" is not one of the 3 classes", "names.txt", "nearest is 'cta'"},
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
  expect_error(Exit::data, {"\"cow\" is not one of the 3 classes"}, [&] { number_of(op, "cow"); });
  expect_error(Exit::data, {"\"caf\u00e9\" differs only in capitals or in the form of Unicode"},
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
