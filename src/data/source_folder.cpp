#include "data/source_folder.hpp"

#include <filesystem>

#include "base/error.hpp"
#include "base/text.hpp"
#include "data/captions_file.hpp"
#include "data/file.hpp"
#include "data/staging.hpp"
#include "io/files.hpp"

namespace data {
namespace {

using base::Exit;

class Folder : public Source {
 public:
  Folder(const FolderOptions& options, const OpenContext& context)
      : path_(options.path),
        stage_dir_(context.stage_dir),
        by_image_(options.sample == "image"),
        captions_(options.captions) {
    std::error_code problem;
    if (!std::filesystem::is_directory(path_, problem)) base::fail(Exit::data, "there is no folder '{}'", path_);
  }

  int64_t size() const override { return by_image_ ? captions_.images() : captions_.captions(); }
  std::string summary() const override {
    return fmt::format(
        "{} images, {} captions{}", base::with_commas(captions_.images()), base::with_commas(captions_.captions()),
        captions_.without_caption() == 0
            ? ""
            : fmt::format(", {} images without a caption left out", base::with_commas(captions_.without_caption())));
  }
  std::string key(int64_t index) const override {
    CHECK(index >= 0 && index < size(), "sample {} of {}", index, size());
    if (by_image_) return file_of(index);
    int64_t image = captions_.image_of(index);
    return fmt::format("{}#{}", file_of(image), index - captions_.of_image(image).first);
  }

  uint64_t fingerprint() const override {
    Fingerprint print;
    for (int64_t i = 0; i < captions_.images(); ++i) {
      print.add(captions_.name(i));
      for (auto [c, last] = captions_.of_image(i); c < last; ++c) print.add(captions_.caption(c));
    }
    return print.value();
  }

  Sample read(int64_t index) const override {
    CHECK(index >= 0 && index < size(), "sample {} of {}", index, size());
    Sample out;
    int64_t image = by_image_ ? index : captions_.image_of(index);
    std::unique_ptr<File> file = open_image(image);
    if (file->size() > kMostMemberBytes)
      base::fail(Exit::data, "the image has {} bytes; at most {} are read", file->size(), kMostMemberBytes);
    Bytes bytes{size_t(file->size())};
    file->read(0, bytes.data(), bytes.size());
    out["image"] = std::move(bytes);
    if (by_image_) {
      Texts texts;
      for (auto [c, last] = captions_.of_image(image); c < last; ++c) texts.emplace_back(captions_.caption(c));
      out["captions"] = std::move(texts);
    } else {
      out["text"] = std::string(captions_.caption(index));
    }
    return out;
  }

 private:
  // An image that is not there is the fault of its sample; a file system that fails is not (Unreadable).
  std::unique_ptr<File> open_image(int64_t image) const {
    std::string path = file_of(image);
    if (!stage_dir_.empty())
      if (std::string copy = staged_path(stage_dir_, path); io::exists(copy)) path = copy;
    try {
      return std::make_unique<File>(path);
    } catch (const Unreadable&) {
      std::error_code problem;
      std::filesystem::file_type type = std::filesystem::status(path, problem).type();
      if (type == std::filesystem::file_type::not_found) base::fail(Exit::data, "there is no such file");
      if (type == std::filesystem::file_type::directory) base::fail(Exit::data, "it is a folder, not a file");
      if (!problem && type != std::filesystem::file_type::regular) base::fail(Exit::data, "it is no regular file");
      throw;
    }
  }

  std::string file_of(int64_t image) const { return fmt::format("{}/{}", path_, captions_.name(image)); }

  std::string path_, stage_dir_;
  bool by_image_;
  CaptionsFile captions_;
};

}  // namespace

void FolderOptions::bind(config::Table& t) {
  t.key("path", path, "folder of the images").required();
  t.key("captions", captions, "captions file; .tsv: \"IMAGE<tab>CAPTION\" lines without a header; .json: COCO captions")
      .required()
      .check([this] {
        return captions.ends_with(".tsv") || captions.ends_with(".json") ? std::string() : "is neither .tsv nor .json";
      });
  t.key("sample", sample,
        "image: one sample per image with fields image and captions (use choice); caption: one per caption with fields "
        "image and text")
      .one_of({"image", "caption"});
}

Spec FolderOptions::spec() const {
  Spec out{{"image", FieldSpec::encoded()}};
  if (sample == "image")
    out["captions"] = FieldSpec::list_of_texts();
  else
    out["text"] = FieldSpec::characters();
  return out;
}

std::vector<std::string> FolderOptions::files() const {
  CaptionsFile known(captions);
  std::vector<std::string> out;
  for (int64_t i = 0; i < known.images(); ++i) out.push_back(fmt::format("{}/{}", path, known.name(i)));
  return out;
}

std::unique_ptr<Source> FolderOptions::open(const OpenContext& context) const {
  return std::make_unique<Folder>(*this, context);
}

SourceRow folder_row() {
  return {"folder", "image files in a folder with a file of captions (TSV or COCO JSON)",
          []() -> std::shared_ptr<SourceOptions> { return std::make_shared<FolderOptions>(); }};
}

}  // namespace data
