// SPDX-License-Identifier: Apache-2.0
#include "data/sources/file_pattern.hpp"

#include <glob.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/error.hpp"
#include "base/text.hpp"
#include "data/sources/brace.hpp"

namespace data {
namespace {

using base::Exit;

// The first folder that could not be listed. glob() accepts only a plain function, so the result
// goes through a variable.
struct Unlisted {
  std::string folder;
  int number = 0;
};
thread_local Unlisted unlisted;

int on_error(const char* folder, int number) {
  if (number == ENOENT || number == ENOTDIR) return 0;  // that part of the pattern matches nothing
  unlisted = {folder, number};
  return 1;
}

std::vector<std::string> matches_of(const std::string& name) {
  unlisted = {};
  glob_t found{};
  int result = ::glob(name.c_str(), GLOB_NOSORT | GLOB_NOESCAPE, on_error, &found);
  std::vector<std::string> out(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (result == GLOB_NOSPACE) throw std::bad_alloc();
  if (!unlisted.folder.empty())
    base::fail(Exit::data, "'{}': the folder '{}' cannot be listed: {}", name, unlisted.folder,
               std::strerror(unlisted.number));
  std::sort(out.begin(), out.end());
  return out;
}

// True for "x.tar.index" beside "x.tar", and for "x.tar.index.AbCdEf", an index being written.
bool is_index_of_another(const std::string& name, const std::vector<std::string>& names) {
  constexpr std::string_view kEnding = ".index";
  size_t at = name.rfind(kEnding);
  if (at == name.npos) return false;
  size_t rest = name.size() - at - kEnding.size();
  bool ending = rest == 0 || (rest == 7 && name[name.size() - 7] == '.');
  return ending && std::binary_search(names.begin(), names.end(), name.substr(0, at));
}

}  // namespace

std::vector<std::string> files_matching(const std::string& pattern) {
  std::vector<std::string> out;
  std::set<std::string> matched;
  for (std::string& name : expand_braces(pattern)) {
    std::error_code unknown;
    if (name.find_first_of("*?[") == name.npos || std::filesystem::exists(name, unknown)) {
      out.push_back(std::move(name));
      continue;
    }
    std::vector<std::string> found = matches_of(name);
    if (found.empty())
      base::fail(Exit::data, "no file matches '{}'{}", name,
                 name == pattern ? "" : fmt::format(" (of '{}')", pattern));
    for (const std::string& file : found) {
      if (is_index_of_another(file, found)) continue;
      if (!matched.insert(file).second)
        base::fail(Exit::data, "'{}' is matched twice by '{}': its samples would count twice", file,
                   pattern);
      out.push_back(file);
    }
  }
  std::error_code unknown;
  if (out.size() == 1 && std::filesystem::is_directory(out[0], unknown))
    base::fail(Exit::data, "'{}' is a folder: name the files in it, for example '{}/*'", out[0],
               out[0]);
  return out;
}

}  // namespace data
