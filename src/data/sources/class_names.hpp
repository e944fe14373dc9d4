// SPDX-License-Identifier: Apache-2.0
// Names of classes in the order of their numbers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace data {

class ClassNames {
 public:
  ClassNames() = default;
  // `from` is a text file with one name per line, or a folder, whose sub-folders are the names,
  // sorted by their bytes; hidden ones are left out. Throws Error(Exit::data) if it cannot be read,
  // holds no name, or holds one twice.
  explicit ClassNames(const std::string& from);

  const std::string& from() const { return from_; }
  int64_t size() const { return int64_t(names_.size()); }
  const std::vector<std::string>& names() const { return names_; }
  // Returns the number of a class. Throws Error(Exit::data) with the nearest name if there is none.
  int32_t number_of(std::string_view name) const;
  // Returns "cat, dog, ..." for logs.
  std::string text() const;

 private:
  std::string near_hint(std::string_view name) const;

  std::string from_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, int32_t> numbers_;
};

}  // namespace data
