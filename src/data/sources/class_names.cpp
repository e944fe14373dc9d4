// SPDX-License-Identifier: Apache-2.0
#include "data/sources/class_names.hpp"

#include <algorithm>
#include <filesystem>

#include "base/error.hpp"
#include "base/text.hpp"
#include "data/hint.hpp"
#include "data/sources/file.hpp"
#include "data/sources/folder_walk.hpp"
#include "data/sources/look_alike.hpp"
#include "data/sources/plain_text.hpp"
#include "data/sources/source.hpp"
#include "io/files.hpp"

namespace data {

using base::Exit;

ClassNames::ClassNames(const std::string& from) : from_(from) {
  std::error_code problem;
  if (std::filesystem::is_directory(from, problem)) {
    names_ = sub_folders(from);
    std::sort(names_.begin(), names_.end());
    if (names_.empty())
      base::fail(Exit::data, "'{}' has no sub-folder: each class is a sub-folder with its images",
                 from);
  } else {
    if (!io::exists(from))
      base::fail(Exit::data, "there is no file or folder '{}' of class names", from);
    names_ = read_list(from, "class names");
    if (names_.empty()) base::fail(Exit::data, "'{}' holds no class name; give one per line", from);
  }
  for (size_t i = 0; i < names_.size(); ++i)
    if (!numbers_.emplace(names_[i], int32_t(i)).second)
      base::fail(Exit::data, "'{}' names the class {} twice", from, base::quoted(names_[i], 60));
}

// Looks for another Unicode form first: it is more frequent than typing errors, and a list of names
// cannot show it.
std::string ClassNames::near_hint(std::string_view name) const {
  for (const std::string& known : names_)
    if (look_alike(name, known))
      return fmt::format(", {} differs only in capitals or in the form of Unicode (NFC, NFD)",
                         base::quoted(known, 60));
  return nearest_hint(std::string(name), names_);
}

int32_t ClassNames::number_of(std::string_view name) const {
  auto found = numbers_.find(std::string(name));
  if (found == numbers_.end())
    base::fail(Exit::data, "{} is not one of the {} classes of '{}'{}", base::quoted(name, 60),
               size(), from_, near_hint(name));
  return found->second;
}

std::string ClassNames::text() const {
  constexpr size_t kNamed = 20;
  std::vector<std::string> shown;
  for (const std::string& name : names_)
    if (shown.size() < kNamed) shown.emplace_back(base::one_line(name));
  if (names_.size() > kNamed) shown.push_back("...");
  return base::join(shown, ", ");
}

}  // namespace data
