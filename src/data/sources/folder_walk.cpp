// SPDX-License-Identifier: Apache-2.0
#include "data/sources/folder_walk.hpp"

#include <sys/stat.h>

#include <utility>

#include "base/cancel.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "data/sources/file.hpp"

namespace data {
namespace {

using base::Exit;
namespace fs = std::filesystem;

bool is_hidden(const fs::path& path) {
  const std::string name = path.filename().native();
  return name.starts_with('.') || is_of_system(name);
}

[[noreturn]] void cannot_list(const fs::path& folder, const std::error_code& problem) {
  throw Unreadable(
      fmt::format("the folder '{}' cannot be listed: {}", folder.native(), problem.message()));
}

}  // namespace

bool leads_nowhere(const fs::path& path) {
  std::error_code problem;
  return fs::status(path, problem).type() == fs::file_type::not_found ||
         problem == std::errc::too_many_symbolic_link_levels;
}

bool is_dangling(const fs::directory_entry& entry) {
  std::error_code problem;
  return entry.is_symlink(problem) && leads_nowhere(entry.path());
}

bool is_special(const fs::directory_entry& entry) {
  std::error_code problem;
  return entry.is_other(problem) && !problem;
}

std::vector<std::string> sub_folders(const std::string& folder) {
  std::vector<std::string> out;
  std::error_code problem;
  for (fs::directory_iterator at(folder, problem), end; !problem && at != end;
       at.increment(problem)) {
    const fs::path& path = at->path();
    if (is_hidden(path)) continue;
    if (std::error_code ignored; at->is_directory(ignored))
      out.push_back(path.filename().native());
    else if (is_dangling(*at) && !is_image_file(path.native()))
      base::fail(Exit::data,
                 "'{}' is a link that leads nowhere: repair or remove it; if it is a class, the "
                 "numbers of the other classes depend on it",
                 path.native());
  }
  if (problem)
    base::fail(Exit::data, "the folder '{}' cannot be listed: {}", folder, problem.message());
  return out;
}

FolderWalk::FolderWalk(const std::string& root, std::stop_token token, WalkFor purpose)
    : root_(root), token_(std::move(token)), purpose_(purpose) {
  std::error_code problem;
  fs::path at = fs::canonical(root, problem);
  for (; !problem && !at.empty(); at = at.parent_path()) {
    remember(at, false)->above = true;
    if (at == at.root_path()) break;
  }
}

void FolderWalk::add(const std::string& folder, FoundImages& found) {
  std::error_code problem;
  if (!fs::is_directory(folder, problem)) return;
  add_below(folder, folder != root_ && fs::is_symlink(folder, problem), found);
}

FolderWalk::Listed* FolderWalk::remember(const fs::path& folder, bool link) {
  struct stat info {};
  if (::stat(folder.c_str(), &info) != 0)
    cannot_list(folder, std::error_code(errno, std::generic_category()));
  auto [known, fresh] = listed_.try_emplace({uint64_t(info.st_dev), uint64_t(info.st_ino)},
                                            Listed{folder.native(), link});
  Listed& other = known->second;
  // Some file systems give one number to different folders. Only links lead to one folder twice.
  if (fresh || (!link && !other.link)) return &other;
  if (purpose_ == WalkFor::names) {
    if (!link || !other.above) return &other;
    base::log::warning("'{}' is a link to a folder above it, which is not followed",
                       base::one_line(folder.native()));
    return nullptr;
  }
  const bool is_later = link || !other.link;  // the link is at fault, whichever came first
  base::fail(Exit::data,
             "'{}' is a link to '{}': the images there would count twice; remove the link",
             is_later ? folder.native() : other.path, is_later ? other.path : folder.native());
}

void FolderWalk::add_below(const fs::path& folder, bool link, FoundImages& found) {
  Listed* const here = remember(folder, link);
  if (!here) return;
  const bool above = std::exchange(here->above, true);
  std::error_code problem;
  for (fs::directory_iterator at(folder, problem), end; !problem && at != end;
       at.increment(problem)) {
    base::end_if_asked(token_);
    const fs::path& path = at->path();
    std::error_code ignored;
    const bool is_folder = at->is_directory(ignored);
    if (is_hidden(path))
      found.hidden += is_folder || is_image_file(path.native());
    else if (is_folder)
      add_below(path, link || at->is_symlink(ignored), found);
    else
      add_file(*at, found);
  }
  here->above = above;
  // A folder may vanish while it is listed.
  if (problem && problem != std::errc::no_such_file_or_directory) cannot_list(folder, problem);
}

void FolderWalk::add_file(const fs::directory_entry& entry, FoundImages& found) const {
  const std::string& path = entry.path().native();
  const bool is_image = is_image_file(path);
  std::error_code ignored;
  if (!entry.is_regular_file(ignored)) {
    if (is_image && purpose_ == WalkFor::samples && is_special(entry))
      base::fail(Exit::data,
                 "'{}' is a pipe, socket or device, not an image file: remove it, or begin its "
                 "name with a dot",
                 path);
    if (is_dangling(entry)) found.lost.push_back(path);
  }
  if (is_image)
    found.images.push_back(path);
  else
    ++found.others;
}

}  // namespace data
