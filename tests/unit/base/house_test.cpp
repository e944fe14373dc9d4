// SPDX-License-Identifier: Apache-2.0
// Checks the house rules that a machine can read: the order of the folders, the owners of each
// library, and the layout of files.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/unit/recorded.hpp"

namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kOrder = {"base",    "device",     "kernels", "config", "comm",
                                         "io",      "shard",      "nn",      "models", "optim",
                                         "data",    "checkpoint", "eval",    "host",   "job",
                                         "records", "step",       "train",   "modes",  "main"};

int place_of(const std::string& folder) {
  auto it = std::find(kOrder.begin(), kOrder.end(), folder);
  return it == kOrder.end() ? -1 : int(it - kOrder.begin());
}

std::vector<std::string> lines_of(const fs::path& file) {
  std::vector<std::string> out;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

struct Include {
  std::string file, from, target;  // path in the repository, its folder, the included path
  size_t line;
  bool quoted;
};

std::vector<fs::path> files_under(const std::vector<std::string>& tops) {
  std::vector<fs::path> out;
  for (const std::string& top : tops)
    for (const auto& entry : fs::recursive_directory_iterator(tests::source_file(top)))
      if (entry.is_regular_file()) out.push_back(entry.path());
  std::sort(out.begin(), out.end());
  return out;
}

std::string in_repository(const fs::path& file) {
  return fs::relative(file, tests::source_file(".")).generic_string();
}

const std::vector<Include>& includes() {
  static const std::vector<Include> all = [] {
    std::vector<Include> found;
    const std::regex form(R"re(^\s*#\s*include\s*(["<])([^">]+)[">].*)re");
    for (const fs::path& file : files_under({"src", "kernels"})) {
      std::string name = in_repository(file);
      std::vector<std::string> lines = lines_of(file);
      std::string from =
          name.starts_with("kernels/") ? "kernels" : name.substr(4, name.find('/', 4) - 4);
      if (name.find('/', 4) == std::string::npos) from = "main";  // src/main.cpp
      for (size_t i = 0; i < lines.size(); ++i)
        if (std::smatch m; std::regex_match(lines[i], m, form))
          found.push_back({name, from, m[2], i + 1, m[1] == "\""});
    }
    return found;
  }();
  return all;
}

std::string at(const Include& i) {
  return i.file + ":" + std::to_string(i.line) + ": includes " + i.target;
}

TEST(IncludeOrder, EveryFolderHasItsPlace) {
  const std::set<std::string> program = {"main", "command_line"};
  for (const auto& entry : fs::directory_iterator(tests::source_file("src")))
    EXPECT_TRUE(entry.is_directory() ? place_of(entry.path().filename().string()) >= 0
                                     : entry.path().extension() == ".md" ||
                                           program.count(entry.path().stem().string()) > 0)
        << entry.path() << ": a folder that is not in the order, or a file outside the folders";
  EXPECT_GT(includes().size(), 300u) << "the reader of #include lines finds too few";
}

TEST(IncludeOrder, FoldersUseOnlyEarlierOnes) {
  for (const Include& i : includes()) {
    size_t slash = i.target.find('/');
    std::string to = slash == std::string::npos ? "" : i.target.substr(0, slash);
    if (i.target == "command_line.hpp") to = "main";
    if (!i.quoted) {
      EXPECT_EQ(place_of(to), -1) << at(i) << " of ours with <>";
      continue;
    }
    ASSERT_GE(place_of(to), 0) << at(i)
                               << ", which names no folder of ours; write \"folder/file.hpp\"";
    EXPECT_LE(place_of(to), place_of(i.from))
        << at(i) << ", but " << i.from << " comes before " << to;
  }
}

TEST(IncludeOrder, TheRestOfDataKnowsNoStreams) {
  for (const Include& i : includes())
    EXPECT_FALSE(i.target.starts_with("data/stream/") && i.from == "data" &&
                 !i.file.starts_with("src/data/stream/"))
        << at(i) << "; streams are made of data sets";
}

// Returns the family that a file of folder `room` belongs to: its sub-folder, or "" without one.
std::string family_of(const std::string& path, const std::string& room) {
  const std::string inner = path.substr(room.size() + 1);
  const size_t slash = inner.rfind('/');
  return slash == inner.npos ? "" : inner.substr(0, slash);
}

// The families that the page of a folder names in its line "May use".
std::set<std::string> used_by_page(const fs::path& folder) {
  std::set<std::string> out;
  for (const std::string& line : lines_of(folder / "README.md")) {
    if (!line.starts_with("May use: ")) continue;
    out.insert("");
    const std::regex name("`([^`]+)`");
    for (std::sregex_iterator m(line.begin(), line.end(), name), end; m != end; ++m)
      out.insert((*m)[1]);
  }
  return out;
}

TEST(IncludeOrder, FamiliesUseWhatTheirPagesSay) {
  const std::set<std::string> tables = {"registry.cpp", "part_lists.cpp", "trunk.cpp"};
  for (const std::string room : {"models", "eval"}) {
    std::map<std::string, std::set<std::string>> may = {{"", {}}}, does;
    std::map<std::string, int> files;
    for (const fs::path& file : files_under({"src/" + room}))
      ++files[family_of(in_repository(file).substr(4), room)];
    for (const auto& [family, count] : files) {
      EXPECT_LE(count, 25) << "files of src/" << room << "/" << family;
      if (family.empty()) continue;
      may[family] = used_by_page(tests::source_file("src/" + room + "/" + family));
      EXPECT_FALSE(may[family].empty())
          << "src/" << room << "/" << family << "/README.md has no line \"May use\"";
    }
    EXPECT_GT(files.size(), 4u);
    for (const Include& i : includes()) {
      if (i.from != room || !i.quoted || !i.target.starts_with(room + "/")) continue;
      if (tables.count(fs::path(i.file).filename().string())) continue;
      const std::string from = family_of(i.file.substr(4), room), to = family_of(i.target, room);
      if (from == to) continue;
      EXPECT_TRUE(may[from].count(to)) << at(i) << ", which the page of its family does not name";
      does[from].insert(to);
    }
    for (const auto& [family, names] : may)
      for (const std::string& name : names)
        EXPECT_TRUE(name.empty() || does[family].count(name))
            << "src/" << room << "/" << family << "/README.md: nothing uses " << name;
  }
}

struct Owner {
  std::string pattern;  // matches the whole included path
  std::set<std::string> folders;
};

TEST(IncludeOrder, LibrariesAreSeenOnlyByTheirOwners) {
  const std::vector<Owner> owners = {
      {"mpi\\.h", {"comm"}},
      {"nccl.*", {"comm"}},
      {"toml\\+\\+/.*|toml\\.hpp", {"config"}},
      {"spdlog/.*", {"base"}},
      {"(oneapi/)?dnnl/?.*", {"kernels"}},
      {"cublas.*|cudnn.*", {"kernels"}},
      {"cuda_runtime.*", {"device"}},
      // data: loops over bytes of images; base: draws of many numbers at once
      {"immintrin\\.h", {"kernels", "data", "base"}},
      {"omp\\.h", {"kernels", "host"}},
      {"hdf5.*|H5.*", {"io"}},
      {"io/h5.*", {"io", "data", "checkpoint", "records", "modes"}},
      {"png\\.h|turbojpeg\\.h|webp/.*|gif_lib\\.h|sentencepiece.*", {"data"}},
      {"archive.*", {"data", "checkpoint"}},
      {"openssl/.*|xxhash\\.h", {"base"}},
      {"CLI/.*", {"main"}},
  };
  std::map<std::string, int> seen;
  for (const Include& i : includes())
    for (const Owner& o : owners)
      if (std::regex_match(i.target, std::regex(o.pattern))) {
        ++seen[o.pattern];
        EXPECT_TRUE(o.folders.count(i.from)) << at(i) << ": not for " << i.from;
      }
  for (const char* there :
       {"mpi\\.h", "toml\\+\\+/.*|toml\\.hpp", "spdlog/.*", "hdf5.*|H5.*", "io/h5.*"})
    EXPECT_GT(seen[there], 0) << there << " is included nowhere: the pattern is stale";
}

TEST(IncludeOrder, OnlyIoIncludesItsInternalHeaders) {
  for (const Include& i : includes())
    EXPECT_TRUE(i.target != "io/h5_handle.hpp" || i.from == "io") << at(i);
}

// True for C++, CMake and scripts.
bool is_text_of_ours(const fs::path& file) {
  std::string name = in_repository(file);
  if (name.find("__pycache__") != std::string::npos) return false;
  static const std::set<std::string> extensions = {".hpp",   ".cpp", ".cu", ".cuh", ".def",
                                                   ".cmake", ".sh",  ".py", ".in"};
  if (extensions.count(file.extension().string()) || file.filename() == "CMakeLists.txt")
    return true;
  if (!name.starts_with("tools/") || file.has_extension()) return false;
  std::vector<std::string> lines = lines_of(file);
  return !lines.empty() && lines[0].starts_with("#!");
}

// True for C++, CUDA, Python, shell and CMake: each such file has a line with its licence.
bool is_source(const fs::path& file) {
  const std::string name = in_repository(file);
  if (name.find("__pycache__") != std::string::npos) return false;
  static const std::set<std::string> extensions = {".hpp", ".h",  ".cpp",   ".cu", ".cuh",
                                                   ".def", ".in", ".cmake", ".sh", ".py"};
  if (extensions.count(file.extension().string()) || file.filename() == "CMakeLists.txt")
    return true;
  if (file.has_extension()) return false;
  const std::vector<std::string> lines = lines_of(file);
  return !lines.empty() && lines[0].starts_with("#!");
}

TEST(Style, SourcesNameTheirLicence) {
  std::vector<fs::path> files =
      files_under({"src", "kernels", "tests", "tools", "jobs", ".ci", ".cmake"});
  files.push_back(fs::path(tests::source_file("CMakeLists.txt")));
  int sources = 0;
  for (const fs::path& file : files) {
    if (!is_source(file)) continue;
    ++sources;
    const std::vector<std::string> lines = lines_of(file);
    ASSERT_FALSE(lines.empty()) << in_repository(file);
    // A line for the shell or for shellcheck must come first.
    const size_t at = lines[0].starts_with("#!") || lines[0].starts_with("# shellcheck") ? 1 : 0;
    const std::string comment = lines.size() > at ? lines[at] : "";
    EXPECT_TRUE(comment == "// SPDX-License-Identifier: Apache-2.0" ||
                comment == "# SPDX-License-Identifier: Apache-2.0")
        << in_repository(file) << ":" << at + 1
        << ": needs a line \"SPDX-License-Identifier: Apache-2.0\"";
  }
  EXPECT_GT(sources, 600) << "the search finds too few files";
}

TEST(Style, TopLevelIsSmall) {
  const std::set<std::string> allowed = {"CMakeLists.txt", "CMakePresets.json",
                                         "README.md",      "LICENSE",
                                         "CHANGELOG.md",   "src",
                                         "kernels",        "inputs",
                                         "jobs",           "tests",
                                         "tools",          "build",
                                         "data",           "runs"};
  for (const auto& entry : fs::directory_iterator(tests::source_file("."))) {
    const std::string name = entry.path().filename().string();
    EXPECT_TRUE(name.starts_with(".") || allowed.count(name))
        << name << ": has no place at the top level";
  }
}

// Characters, not bytes, of UTF-8 text.
size_t columns_of(const std::string& line) {
  return size_t(
      std::count_if(line.begin(), line.end(), [](char c) { return (uint8_t(c) & 0xc0) != 0x80; }));
}

TEST(Style, FilesAreShortAndClean) {
  int files = 0;
  for (const fs::path& file : files_under({"src", "kernels", "tests", "tools"})) {
    if (!is_text_of_ours(file)) continue;
    ++files;
    std::string name = in_repository(file);
    std::vector<std::string> lines = lines_of(file);
    EXPECT_LT(lines.size(), 501u) << name << ": split it";
    for (size_t i = 0; i < lines.size(); ++i) {
      const std::string& line = lines[i];
      std::string where = name + ":" + std::to_string(i + 1);
      EXPECT_EQ(line.find('\t'), std::string::npos) << where << ": a tab";
      EXPECT_EQ(line.find('\r'), std::string::npos) << where << ": a carriage return";
      EXPECT_FALSE(!line.empty() && line.back() == ' ') << where << ": blanks at the end";
      EXPECT_LE(columns_of(line), 140u) << where << ": too wide";
      bool code = name.starts_with("src/") && !line.starts_with("//");
      EXPECT_FALSE(code && line.find("{:?}") != line.npos)
          << where << ": fmt 9 aborts on some texts, use base::quoted";
    }
  }
  EXPECT_GT(files, 150) << "the search finds too few files";
}

// Files that may mention captions, by the name without its extension. Any file in src/models may.
const std::map<std::string, std::string>& caption_files() {
  static const std::map<std::string, std::string> files = {
      {"perplexity", "evaluator of captions"},
      {"captioning", "evaluator of captions"},
      {"shuffled_images", "captions with images of others"},
      {"generated_caption", "keys and JSON lines of generated captions"},
      {"caption", "mode that captions images"},
      {"mode_options", "keys of that mode"},
      {"command_line", "its name, in the help"},
      {"caption_metrics", "BLEU, ROUGE-L and CIDEr-D"},
      {"caption_tokens", "words of captions for these"},
      {"scoring", "evaluator that ranks captions of classes"},
      {"retrieval", "evaluator of captions"},
      {"pair_scores", "scores of captions, for these two"},
      {"show", "mode that reads captions to people"},
      {"index", "mode that counts captions"},
      {"recipe", "keys that moved to the model give an error with the new place"},
      {"caption_table", "tables of captions"},
      {"tensorboard", "captions of an evaluation, beside their images"},
      {"log_options", "key that asks for these files"},
      {"classes", "hint at the key of these tables that gives each row a sample"},
      {"captions_file", "tables of captions, and COCO's JSON"},
      {"folder", "images with a file of captions"},
      {"synthetic", "made-up images and captions"},
      {"member_json", "captions in JSON members"},
      {"op", "what tokenize found out about one sample, for the mode above"},
      {"fields", "op coco_captions"},
      {"tokenize", "op of captions"},
      {"count_lines", "what that op counted"},
      {"registry", "row of the op coco_captions"},
      {"tokenizer", "pad piece of a tokenizer"},
      {"bytes", "pad piece of a tokenizer"},
      {"sentencepiece", "pad piece of a tokenizer"},
  };
  return files;
}

// Words of models may occur only in src/models and in files that `allowed` names with a reason.
void expect_words_of_models(const std::vector<std::string>& folders, const std::regex& words,
                            const std::map<std::string, std::string>& allowed) {
  std::set<std::string> speaking;
  for (const fs::path& file : files_under(folders)) {
    const std::string name = in_repository(file), stem = file.stem().string();
    if (name.starts_with("src/models/") || file.extension() == ".md") continue;
    const std::vector<std::string> lines = lines_of(file);
    for (size_t i = 0; i < lines.size(); ++i) {
      if (!std::regex_search(lines[i], words)) continue;
      speaking.insert(stem);
      EXPECT_TRUE(allowed.count(stem)) << name << ":" << i + 1 << ": " << lines[i];
    }
  }
  for (const auto& [stem, why] : allowed)
    EXPECT_TRUE(speaking.count(stem)) << stem << " needs no place in the list";
}

// Models declare their measures and inputs, so only models and caption data need words about
// captions.
TEST(Style, OnlyModelsAndCaptionDataSpeakOfCaptions) {
  expect_words_of_models(
      {"src", "kernels"},
      std::regex(
          "captio|loss_ar|loss_parallel|pad_id|label_smoothing|logits_mb|masked_pred|decoder_ids",
          std::regex::icase),
      caption_files());
}

// In kernels, ops of losses are named after what they compute.
TEST(Style, OnlyModelsSpeakOfSelfSupervision) {
  expect_words_of_models(
      {"src"},
      std::regex("simclr|moco|swav|\\bdino|barlow|npid|rotnet|jigsaw|\\bpirl|deepcluster|prototype|"
                 "sinkhorn|infonce|memory bank",
                 std::regex::icase),
      {{"torch_names", "names of parameters in files of published programs"},
       {"foreign_vit", "programs whose ViTs it reads"},
       {"weight_config", "models that files of other programs name"},
       {"vit_families", "programs whose ViTs it reads"},
       {"weight_report", "programs whose ViTs it reads"},
       {"init_options", "names of these programs, in the help"}});
}

// Functions of the C library whose bits depend on its version and on the processor.
TEST(Style, ElementaryFunctionsAreThoseOfBase) {
  const std::string names =
      "(exp2?|expm1|log2?|log10|log1p|pow|sincos|a?sinh?|a?cosh?|a?tanh?|atan2|erfc?|cbrt|hypot|"
      "[lt]gamma)[fl]?";
  const std::regex call("(^|[^A-Za-z0-9_>])(std::|::|__builtin_)" + names +
                        "\\b|([-=(+*/,?!{]|: |return) *" + names + "\\(");
  const std::map<std::string, std::string> allowed = {
      {"src/base/elementary.cpp", "chooses between the library's and own ones"},
      {"kernels/cpu/scalar_log.hpp", "chooses likewise within the vector loops"}};
  std::set<std::string> calling;
  for (const fs::path& file : files_under({"src", "kernels"})) {
    const std::string name = in_repository(file);
    if (name.starts_with("kernels/cuda/") || file.extension() == ".md") continue;
    const std::vector<std::string> lines = lines_of(file);
    for (size_t i = 0; i < lines.size(); ++i) {
      const std::string code = lines[i].substr(0, lines[i].find("//"));
      if (!std::regex_search(code, call)) continue;
      calling.insert(name);
      EXPECT_TRUE(allowed.count(name))
          << name << ":" << i + 1 << ": its bits depend on the C library; call base::math's";
    }
  }
  for (const auto& [name, why] : allowed)
    EXPECT_TRUE(calling.count(name)) << name << " needs no place in the list";
}

TEST(Style, HeadersAreGuardedAndSayWhatTheyAreFor) {
  for (const fs::path& file : files_under({"src", "kernels"})) {
    if (file.extension() != ".hpp") continue;
    std::vector<std::string> lines = lines_of(file);
    EXPECT_NE(std::find(lines.begin(), lines.end(), "#pragma once"), lines.end())
        << in_repository(file);
    ASSERT_GT(lines.size(), 2u) << in_repository(file);
    // The first line names the licence.
    EXPECT_TRUE(lines[1].starts_with("// "))
        << in_repository(file) << ": a header begins with its purpose";
  }
}

}  // namespace
