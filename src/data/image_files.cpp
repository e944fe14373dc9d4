// SPDX-License-Identifier: Apache-2.0
#include "data/image_files.hpp"

#include <algorithm>
#include <filesystem>

#include "base/error.hpp"
#include "data/sources/file.hpp"
#include "data/sources/folder_walk.hpp"
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
    const fs::file_type type = fs::status(path, problem).type();
    if (type == fs::file_type::not_found)
      base::fail(base::Exit::data, "there is no such file{}", look_alike_hint(path));
    // Opening a pipe could take data that another reader waits for.
    if (type != fs::file_type::regular && !problem)
      base::fail(base::Exit::data, "it is a {}, not an image file",
                 type == fs::file_type::directory ? "folder" : "pipe, socket or device");
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

std::vector<std::string> images_below(const std::string& folder) {
  FoundImages found;
  FolderWalk(folder, {}, WalkFor::names).add(folder, found);
  if (found.images.empty())
    base::fail(base::Exit::data, "the folder '{}' holds no image ({})", folder, kImageEndings);
  std::sort(found.images.begin(), found.images.end());
  return std::move(found.images);
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
                 "its ops do not make \"{}\" from an encoded image file; name a data set whose "
                 "preprocess decodes image files",
                 field);
    return std::make_unique<Dataset>(name, std::make_unique<ImageFiles>(from, std::move(files)),
                                     std::move(pipeline));
  } catch (const base::Error& e) {
    base::fail(e.code(), "data.{}: {}", name, e.what());
  }
}

}  // namespace data
