// SPDX-License-Identifier: Apache-2.0
#include "data/sources/folder.hpp"

#include <algorithm>
#include <filesystem>
#include <unordered_map>

#include "base/cancel.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "data/bad_sample.hpp"
#include "data/sources/brace.hpp"
#include "data/sources/captions_file.hpp"
#include "data/sources/file.hpp"
#include "data/sources/file_pattern.hpp"
#include "data/sources/folder_walk.hpp"
#include "data/sources/look_alike.hpp"
#include "data/sources/staging.hpp"
#include "io/files.hpp"

namespace data {
namespace {

using base::Exit;

constexpr size_t kNamed = 5;  // maximum number of missing images in a message

// Removes from `wanted` the names of all files in the folder. A link that leads nowhere is not a
// file, nor is a pipe. One listing replaces a query for each file. Only links, and entries whose
// kind the listing does not give, need system calls of their own.
void remove_listed(const std::string& folder, std::unordered_map<std::string_view, int64_t>& wanted,
                   const std::stop_token& token) {
  std::error_code problem;
  for (std::filesystem::directory_iterator at(folder, problem), end; !problem && at != end;
       at.increment(problem)) {
    base::end_if_asked(token);
    auto found = wanted.find(at->path().filename().native());
    std::error_code ignored;
    if (found == wanted.end()) continue;
    if (at->is_regular_file(ignored) ||
        (!at->is_directory(ignored) && !is_dangling(*at) && !is_special(*at)))
      wanted.erase(found);
  }
  if (problem == std::errc::permission_denied)
    // Files may be readable in a folder that cannot be listed. They are opened when their turn
    // comes.
    wanted.clear();
  else if (problem && problem != std::errc::no_such_file_or_directory &&
           problem != std::errc::not_a_directory)
    throw Unreadable(
        fmt::format("the folder '{}' cannot be listed: {}", folder, problem.message()));
}

// Returns the numbers of the images that are not in the folder, ascending.
std::vector<int64_t> missing_images(const CaptionsFile& captions, const std::string& root,
                                    const std::stop_token& token) {
  std::unordered_map<std::string_view, std::vector<int64_t>> by_folder;
  auto cut = [&](int64_t image) {
    std::string_view name = captions.name(image);
    size_t slash = name.rfind('/');
    return std::pair{slash == name.npos ? std::string_view() : name.substr(0, slash),
                     name.substr(slash + 1)};
  };
  for (int64_t i = 0; i < captions.images(); ++i) by_folder[cut(i).first].push_back(i);
  std::vector<int64_t> out;
  for (const auto& [folder, images] : by_folder) {
    std::unordered_map<std::string_view, int64_t> wanted;
    for (int64_t i : images) wanted.emplace(cut(i).second, i);
    remove_listed(folder.empty() ? root : fmt::format("{}/{}", root, folder), wanted, token);
    for (const auto& [name, image] : wanted) out.push_back(image);
  }
  std::sort(out.begin(), out.end());
  return out;
}

class Folder : public Source {
 public:
  Folder(const FolderOptions& options, const std::vector<std::string>& files,
         const OpenContext& context)
      : path_(options.folder(files)),
        stage_dir_(context.stage_dir),
        by_image_(options.by_image),
        captions_(files, options.columns) {
    std::error_code problem;
    if (!std::filesystem::is_directory(path_, problem))
      base::fail(Exit::data,
                 "there is no folder '{}' (path names one folder, without *, ?, [...] or braces)",
                 path_);
    // Only one rank looks for images: a folder of millions of names is slow to list.
    if (base::where().rank == 0) look_for_images(options, context);
  }

  int64_t size() const override { return by_image_ ? captions_.images() : captions_.captions(); }
  std::string summary() const override {
    return fmt::format("{} images, {} captions{}{}{}", base::with_commas(captions_.images()),
                       base::with_commas(captions_.captions()),
                       captions_.without_caption() == 0
                           ? ""
                           : fmt::format(", {} images without a caption left out",
                                         base::with_commas(captions_.without_caption())),
                       captions_.unquoted_cells() == 0
                           ? ""
                           : fmt::format(", quotes around {} cells removed",
                                         base::with_commas(captions_.unquoted_cells())),
                       missing_);
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
      base::fail(Exit::data, "the image has {} bytes; at most {} are read", file->size(),
                 kMostMemberBytes);
    Bytes bytes{size_t(file->size())};
    file->read(0, bytes.data(), bytes.size());
    out["image"] = std::move(bytes);
    out[text_field()] = text(index);
    return out;
  }
  Value field(int64_t index, const std::string& name) const override {
    return name == text_field() ? text(index) : Source::field(index, name);
  }

 private:
  const char* text_field() const { return by_image_ ? "captions" : "text"; }
  Value text(int64_t index) const {
    if (!by_image_) return std::string(captions_.caption(index));
    Texts texts;
    for (auto [c, last] = captions_.of_image(index); c < last; ++c)
      texts.emplace_back(captions_.caption(c));
    return texts;
  }
  // Missing images end the job now. With substitutes, they appear in the summary and are replaced
  // when their turn comes.
  void look_for_images(const FolderOptions& options, const OpenContext& context) {
    std::vector<int64_t> missing = missing_images(captions_, path_, context.token);
    if (!stage_dir_.empty())
      std::erase_if(missing,
                    [&](int64_t i) { return io::exists(staged_path(stage_dir_, file_of(i))); });
    if (missing.empty()) return;
    int64_t count = int64_t(missing.size());
    std::vector<std::string> names;
    for (int64_t i : missing)
      if (names.size() < kNamed) names.emplace_back(base::one_line(captions_.name(i)));
    if (missing.size() > kNamed) names.push_back("...");
    std::string what = fmt::format("no such file for {} of {} images: {}{}",
                                   base::with_commas(count), base::with_commas(captions_.images()),
                                   base::join(names, ", "), not_files(missing));
    missing_ = ", " + what + " (bad samples)";
    if (context.substitutes && count < captions_.images()) return;
    bool header = captions_.name(missing[0]) == captions_.headless();
    base::fail(
        Exit::data, "{}{}; '{}' names them, and the folder of the images is '{}' ({}){}{}", what,
        look_alike_hint(file_of(missing[0])), options.captions, path_,
        options.path.empty() ? "where the captions are; set path if the images are elsewhere"
                             : "path",
        header ? fmt::format("; if {} is the name of a column, set image_column and caption_column",
                             base::quoted(captions_.headless()))
               : "",
        count < captions_.images()
            ? "; with loader.on_bad_sample = \"substitute\" other samples replace them"
            : "");
  }

  // Returns a text for messages: how many of the first kMost missing images are links that lead
  // nowhere, or pipes, sockets or devices.
  std::string not_files(const std::vector<int64_t>& missing) const {
    constexpr size_t kMost = 1000;
    size_t links = 0, special = 0;
    for (size_t i = 0; i < std::min(missing.size(), kMost); ++i) {
      std::error_code ignored;
      const std::filesystem::directory_entry entry(file_of(missing[i]), ignored);
      const bool is_one = is_special(entry);
      special += is_one;
      links += !is_one && entry.is_symlink(ignored);
    }
    const char* more = missing.size() > kMost ? " or more" : "";
    std::string out;
    if (links)
      out = fmt::format(" ({}{} are links that lead nowhere)", base::with_commas(int64_t(links)),
                        more);
    if (special)
      out += fmt::format(" ({}{} are pipes, sockets or devices)",
                         base::with_commas(int64_t(special)), more);
    return out;
  }

  // A missing image is the fault of its sample. A failing file system is not (Unreadable).
  std::unique_ptr<File> open_image(int64_t image) const {
    std::string path = file_of(image);
    if (!stage_dir_.empty())
      if (std::string copy = staged_path(stage_dir_, path); io::exists(copy)) path = copy;
    try {
      return std::make_unique<File>(path);
    } catch (const Unreadable&) {
      std::error_code problem;
      std::filesystem::file_type type = std::filesystem::status(path, problem).type();
      if (leads_nowhere(path))
        base::fail(Exit::data, "there is no such file{}", look_alike_hint(path));
      if (type == std::filesystem::file_type::directory)
        base::fail(Exit::data, "it is a folder, not a file");
      if (!problem && type != std::filesystem::file_type::regular)
        base::fail(Exit::data, "it is not a regular file");
      throw;
    }
  }

  std::string file_of(int64_t image) const {
    return fmt::format("{}/{}", path_, captions_.name(image));
  }

  std::string path_, stage_dir_;
  bool by_image_;
  CaptionsFile captions_;
  std::string missing_;  // for the summary; set on rank 0 only
};

}  // namespace

void FolderOptions::bind(config::Table& t) {
  t.key("path", path,
        "folder of the images, which the names in `captions` are relative to; \"\" = the folder of "
        "`captions`")
      .unit("path");
  t.key("captions", captions,
        "COCO captions .json, or a table .tsv, .csv or .jsonl with one row per caption. A first "
        "line that names the columns (image, filepath, file_name, path, ... and caption, title, "
        "text, ...) is a header; without a header the columns are image, caption. Also a pattern, "
        "such as \"part-{0..3}.csv\" or \"*.tsv\": files in the order of their names")
      .required()
      .unit("path")
      .check([this] { return captions_problem(); });
  t.key("image_column", columns.image,
        "column of the image's file in a table; \"\": image, file_name, path or alike")
      .check([this] { return column_problem(columns.image); });
  t.key("caption_column", columns.caption,
        "column of the caption in a table; \"\": caption, title, text or alike")
      .check([this] { return column_problem(columns.caption); });
  t.choice("sample", by_image, {{"image", true}, {"caption", false}},
           "image: one sample per image with fields image and captions (use choice); caption: one "
           "per caption with fields image and text");
}

Spec FolderOptions::spec() const {
  Spec out{{"image", FieldSpec::encoded()}};
  if (by_image)
    out["captions"] = FieldSpec::list_of_texts();
  else
    out["text"] = FieldSpec::characters();
  return out;
}

std::string FolderOptions::captions_problem() const {
  try {
    check_braces(captions);
  } catch (const base::Error& e) {
    return e.what();
  }
  return is_coco(captions) || is_table(captions) ? "" : "is neither .tsv, .csv, .jsonl nor .json";
}

std::string FolderOptions::column_problem(const std::string& column) const {
  return column.empty() || is_table(captions)
             ? ""
             : "is for tables (.tsv, .csv, .jsonl); COCO captions have no columns";
}

std::vector<std::string> FolderOptions::caption_files() const {
  std::error_code unknown;
  return std::filesystem::exists(captions, unknown) ? std::vector<std::string>{captions}
                                                    : files_matching(captions);
}

std::string FolderOptions::folder(const std::vector<std::string>& caption_files) const {
  if (!path.empty()) return path;
  std::string out = io::parent_of(caption_files.at(0));
  for (const std::string& file : caption_files)
    if (io::parent_of(file) != out)
      base::fail(Exit::data,
                 "'{}' and '{}' are in different folders: set path to the folder of the images",
                 caption_files[0], file);
  return out;
}

std::vector<std::string> FolderOptions::files() const {
  std::vector<std::string> tables = caption_files(), out;
  std::string root = folder(tables);
  CaptionsFile known(tables, columns);
  for (int64_t i = 0; i < known.images(); ++i)
    out.push_back(fmt::format("{}/{}", root, known.name(i)));
  return out;
}

std::unique_ptr<Source> FolderOptions::open(const OpenContext& context) const {
  return std::make_unique<Folder>(*this, caption_files(), context);
}

SourceRow folder_row() {
  return {"folder", "image files in a folder with a file of captions (TSV, CSV or COCO JSON)",
          []() -> std::shared_ptr<SourceOptions> { return std::make_shared<FolderOptions>(); }};
}

}  // namespace data
