// SPDX-License-Identifier: Apache-2.0
#include "data/sources/class_folder.hpp"

#include <algorithm>
#include <filesystem>

#include "base/error.hpp"
#include "base/text.hpp"
#include "data/sources/file.hpp"
#include "data/sources/folder_walk.hpp"
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
  std::vector<std::string> lost;   // links that lead nowhere, named like an image or a folder
  int64_t lost_images = 0;         // lost links that are among the images
  int64_t others = 0;              // files that are not images
  int64_t hidden = 0;              // hidden images and folders, left out
  int64_t empty = 0;               // classes without an image
};

ClassListing list_classes(const std::string& path, const ClassNames& classes,
                          const std::stop_token& token) {
  const ClassNames folders(path);
  for (const std::string& folder : folders.names()) classes.number_of(folder);
  ClassListing out;
  FolderWalk walk(path, token);
  for (const std::string& name : classes.names()) {
    FoundImages found;  // their paths begin with `path` and a slash
    walk.add(fmt::format("{}/{}", path, name), found);
    std::sort(found.images.begin(), found.images.end());
    for (const std::string& image : found.images)
      out.images.push_back({image.substr(path.size() + 1), classes.number_of(name)});
    for (std::string& link : found.lost) {
      const bool image = is_image_file(link);
      // Other files are not read, but a missing folder may have held images.
      if (!image && fs::path(link).has_extension()) continue;
      out.lost_images += image;
      out.lost.push_back(link.substr(path.size() + 1));
    }
    out.others += found.others;
    out.hidden += found.hidden;
    out.empty += found.images.empty();
  }
  std::sort(out.lost.begin(), out.lost.end());
  return out;
}

class ClassFolder : public Source {
 public:
  ClassFolder(const ClassFolderOptions& options, const OpenContext& context)
      : path_(options.path), context_(context), classes_(options.names_from()) {
    ClassListing found = list_classes(path_, classes_, context.token);
    if (found.images.empty())
      base::fail(Exit::data, "the sub-folders of '{}' hold no image ({})", path_, kImageEndings);
    summary_ =
        fmt::format("{} images, {} classes: {}", base::with_commas(int64_t(found.images.size())),
                    classes_.size(), classes_.text());
    if (found.empty) summary_ += fmt::format("; {} classes without an image", found.empty);
    if (found.others)
      summary_ +=
          fmt::format("; {} files left out that are not images", base::with_commas(found.others));
    if (found.hidden)
      summary_ +=
          fmt::format("; {} hidden images or folders left out", base::with_commas(found.hidden));
    if (!found.lost.empty()) report_lost(found);
    images_ = std::move(found.images);
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
    const std::unique_ptr<File> file = open_image(context_.local(key(index)));
    if (file->size() > kMostMemberBytes)
      base::fail(Exit::data, "the image has {} bytes; at most {} are read", file->size(),
                 kMostMemberBytes);
    Bytes bytes{size_t(file->size())};
    file->read(0, bytes.data(), bytes.size());
    Sample out;
    out["image"] = std::move(bytes);
    out["label"] = label(index);
    return out;
  }
  Value field(int64_t index, const std::string& name) const override {
    return name == "label" ? Value(label(index)) : Source::field(index, name);
  }

 private:
  // A missing image is the fault of its sample. A failing file system is not (Unreadable).
  static std::unique_ptr<File> open_image(const std::string& path) try {
    return std::make_unique<File>(path);
  } catch (const Unreadable&) {
    if (leads_nowhere(path)) base::fail(Exit::data, "there is no such file");
    throw;
  }

  // Missing images end the job now. With substitutes, they appear in the summary and are replaced
  // when their turn comes.
  void report_lost(const ClassListing& found) {
    constexpr size_t kNamed = 5;
    std::vector<std::string> names;
    for (const std::string& link : found.lost)
      if (names.size() < kNamed) names.emplace_back(base::one_line(link));
    if (found.lost.size() > kNamed) names.push_back("...");
    const std::string what =
        fmt::format("{} links lead nowhere: {}", base::with_commas(int64_t(found.lost.size())),
                    base::join(names, ", "));
    summary_ += "; " + what + " (bad samples)";
    if (context_.substitutes && found.lost_images < int64_t(found.images.size())) return;
    base::fail(Exit::data,
               "{}, in '{}'; restore what they lead to, or remove them; with loader.on_bad_sample "
               "= \"substitute\" other samples replace them",
               what, path_);
  }

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
