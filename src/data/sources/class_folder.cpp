// SPDX-License-Identifier: Apache-2.0
#include "data/sources/class_folder.hpp"

#include <algorithm>
#include <filesystem>

#include "base/cancel.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "data/sources/file.hpp"
#include "io/files.hpp"

namespace data {
namespace {

using base::Exit;
namespace fs = std::filesystem;

struct ClassImage {
  std::string name;  // path below the folder of the classes
  int32_t label = 0;
};

struct ClassListing {
  std::vector<ClassImage> images;  // sorted by class, then by name
  int64_t others = 0;              // files that are not images
  int64_t empty = 0;               // classes without an image
};

ClassListing list_classes(const std::string& path, const ClassNames& classes,
                          const std::stop_token& token) {
  const ClassNames folders(path);
  for (const std::string& folder : folders.names()) classes.number_of(folder);
  ClassListing out;
  for (const std::string& name : classes.names()) {
    const size_t first = out.images.size();
    const fs::path folder = fs::path(path) / name;
    std::error_code problem;
    fs::recursive_directory_iterator at(folder, fs::directory_options::follow_directory_symlink,
                                        problem),
        end;
    for (; !problem && at != end; at.increment(problem)) {
      base::end_if_asked(token);
      std::error_code ignored;
      if (at->is_directory(ignored)) continue;
      if (is_image_file(at->path().native()))
        out.images.push_back(
            {at->path().lexically_relative(path).native(), classes.number_of(name)});
      else
        ++out.others;
    }
    if (problem && problem != std::errc::no_such_file_or_directory)
      throw Unreadable(
          fmt::format("the folder '{}' cannot be listed: {}", folder.native(), problem.message()));
    std::sort(out.images.begin() + int64_t(first), out.images.end(),
              [](const ClassImage& a, const ClassImage& b) { return a.name < b.name; });
    out.empty += out.images.size() == first;
  }
  return out;
}

class ClassFolder : public Source {
 public:
  ClassFolder(const ClassFolderOptions& options, const OpenContext& context)
      : path_(options.path), context_(context), classes_(options.names_from()) {
    ClassListing found = list_classes(path_, classes_, context.token);
    if (found.images.empty())
      base::fail(Exit::data, "the sub-folders of '{}' hold no image ({})", path_, kImageEndings);
    images_ = std::move(found.images);
    summary_ = fmt::format("{} images, {} classes: {}", base::with_commas(size()), classes_.size(),
                           classes_.text());
    if (found.empty) summary_ += fmt::format("; {} classes without an image", found.empty);
    if (found.others)
      summary_ +=
          fmt::format("; {} files that are no images left out", base::with_commas(found.others));
  }

  int64_t size() const override { return int64_t(images_.size()); }
  std::string summary() const override { return summary_; }
  std::string key(int64_t index) const override {
    return fmt::format("{}/{}", path_, at(index).name);
  }
  uint64_t fingerprint() const override {
    Fingerprint print;
    for (const ClassImage& i : images_) print.add(i.name).add(i.label);
    return print.value();
  }

  Sample read(int64_t index) const override {
    const File file(context_.local(key(index)));
    if (file.size() > kMostMemberBytes)
      base::fail(Exit::data, "the image has {} bytes; at most {} are read", file.size(),
                 kMostMemberBytes);
    Bytes bytes{size_t(file.size())};
    file.read(0, bytes.data(), bytes.size());
    Sample out;
    out["image"] = std::move(bytes);
    out["label"] = label(index);
    return out;
  }
  Value field(int64_t index, const std::string& name) const override {
    return name == "label" ? Value(label(index)) : Source::field(index, name);
  }

 private:
  Array label(int64_t index) const {
    Array out(device::DType::i32, {});
    *out.i32() = at(index).label;
    return out;
  }
  const ClassImage& at(int64_t index) const {
    CHECK(index >= 0 && index < size(), "sample {} of {}", index, size());
    return images_[size_t(index)];
  }

  std::string path_;
  OpenContext context_;
  ClassNames classes_;
  std::vector<ClassImage> images_;
  std::string summary_;
};

}  // namespace

void ClassFolderOptions::bind(config::Table& t) {
  t.key("path", path, "folder with a sub-folder for each class, which holds its images")
      .required()
      .unit("path");
  t.key("classes", classes,
        "names of the classes in the order of their numbers: a file with one per line, or a folder "
        "whose sub-folders, sorted, are the names; \"\" = `path`. Sets that are used together need "
        "one list")
      .unit("path");
}

Spec ClassFolderOptions::spec() const {
  std::error_code unknown;
  // A deck may be checked on a machine without its data.
  const bool known = std::filesystem::exists(names_from(), unknown);
  return {{"image", FieldSpec::encoded()},
          {"label",
           FieldSpec::array(device::DType::i32, {}, known ? ClassNames(names_from()).size() : 0)}};
}

std::vector<std::string> ClassFolderOptions::files() const {
  std::vector<std::string> out;
  for (const ClassImage& i : list_classes(path, ClassNames(names_from()), {}).images)
    out.push_back(fmt::format("{}/{}", path, i.name));
  return out;
}

std::unique_ptr<Source> ClassFolderOptions::open(const OpenContext& context) const {
  return std::make_unique<ClassFolder>(*this, context);
}

SourceRow class_folder_row() {
  return {
      "class_folder", "image files in sub-folders, one for each class",
      []() -> std::shared_ptr<SourceOptions> { return std::make_shared<ClassFolderOptions>(); }};
}

}  // namespace data
