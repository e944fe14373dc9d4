// SPDX-License-Identifier: Apache-2.0
#include "data/image_files.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "data/sources/file.hpp"
#include "data/sources/look_alike.hpp"

namespace data {
namespace {

namespace fs = std::filesystem;

class ImageFiles : public Source {
 public:
  ImageFiles(std::string field, std::vector<std::string> files)
      : field_(std::move(field)), files_(std::move(files)) {}

  int64_t size() const override { return int64_t(files_.size()); }
  std::string key(int64_t index) const override { return files_.at(size_t(index)); }
  std::string summary() const override { return fmt::format("{} image files", files_.size()); }
  Sample read(int64_t index) const override {
    const std::string& path = files_.at(size_t(index));
    std::error_code problem;
    if (!fs::exists(path, problem))
      base::fail(base::Exit::data, "there is no such file{}", look_alike_hint(path));
    const File file(path);
    if (file.size() > kMostMemberBytes)
      base::fail(base::Exit::data, "the image has {} bytes; at most {} are read", file.size(),
                 kMostMemberBytes);
    Bytes bytes{size_t(file.size())};
    file.read(0, bytes.data(), bytes.size());
    Sample out;
    out[field_] = std::move(bytes);
    return out;
  }

 private:
  std::string field_;
  std::vector<std::string> files_;
};

// Tells links to a folder above them from others: such a link would be followed for ever.
class FoldersAbove {
 public:
  explicit FoldersAbove(const std::string& top) { enter(top, 0); }
  // Returns false for a folder that is one of those above it. `depth` counts from the top.
  bool enter(const std::string& folder, int depth) {
    struct stat info;
    if (::stat(folder.c_str(), &info) != 0) return true;  // the listing names the problem
    chain_.resize(std::min(chain_.size(), size_t(depth)));
    const std::pair id{info.st_dev, info.st_ino};
    if (std::ranges::count(chain_, id) > 0) return false;
    chain_.push_back(id);
    return true;
  }

 private:
  std::vector<std::pair<dev_t, ino_t>> chain_;  // from the top
};

std::vector<std::string> images_below(const std::string& folder) {
  std::vector<std::string> out;
  FoldersAbove above(folder);
  std::error_code problem;
  fs::recursive_directory_iterator at(folder, fs::directory_options::follow_directory_symlink,
                                      problem),
      end;
  for (; !problem && at != end; at.increment(problem)) {
    const std::string name = at->path().filename().native();
    std::error_code ignored;
    const bool is_folder = at->is_directory(ignored);
    if (name.starts_with('.')) {
      if (is_folder) at.disable_recursion_pending();
    } else if (!is_folder && is_image_file(name)) {
      out.push_back(at->path().native());
    } else if (is_folder && !above.enter(at->path().native(), at.depth() + 1)) {
      base::log::warning("'{}' is a link to a folder above it, which is not followed",
                         base::one_line(at->path().native()));
      at.disable_recursion_pending();
    }
  }
  if (problem)
    base::fail(base::Exit::data, "the folder '{}' cannot be listed: {}", folder, problem.message());
  if (out.empty())
    base::fail(base::Exit::data, "the folder '{}' holds no image ({})", folder, kImageEndings);
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

std::vector<std::string> find_images(const std::vector<std::string>& paths) {
  std::vector<std::string> out;
  for (const std::string& path : paths) {
    std::error_code unknown;
    if (!fs::is_directory(path, unknown)) {
      out.push_back(path);
      continue;
    }
    for (std::string& file : images_below(path)) out.push_back(std::move(file));
  }
  return out;
}

std::unique_ptr<Dataset> open_images(const Sections& sections, const Tokenizers& tokenizers,
                                     const std::string& name, const std::string& field,
                                     std::vector<std::string> files, const OpenContext& context) {
  try {
    const SourceOptions* options = sections.data.at(name).source_options();
    CHECK(options, "no source options");
    Pipeline pipeline(sections.preprocess_of(name), options->spec(),
                      {.tokenizers = &tokenizers, .open = false}, context.seed);
    const std::vector<std::string>& bytes = context.bytes_fields;
    if (std::find(bytes.begin(), bytes.end(), field) != bytes.end()) pipeline.leave_bytes(field);
    const std::string from = pipeline.keep_only(field);
    const auto input = pipeline.input().find(from);
    if (input == pipeline.input().end() || input->second.kind != FieldSpec::Kind::bytes)
      base::fail(base::Exit::config,
                 "its ops do not make \"{}\" from the file of an image; name a data set with "
                 "encoded images and decode",
                 field);
    return std::make_unique<Dataset>(name, std::make_unique<ImageFiles>(from, std::move(files)),
                                     std::move(pipeline));
  } catch (const base::Error& e) {
    base::fail(e.code(), "data.{}: {}", name, e.what());
  }
}

}  // namespace data
