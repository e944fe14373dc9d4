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
  // `from` is a text file with one name per line, or a folder. A folder gives the names of its
  // sub-folders, sorted by their bytes, without hidden ones. Throws Error(Exit::data) if `from`
  // cannot be read, holds no name, or holds a name twice.
  explicit ClassNames(const std::string& from);

  const std::string& from() const { return from_; }
  int64_t size() const { return int64_t(names_.size()); }
  const std::vector<std::string>& names() const { return names_; }
  // Returns the number of a class. If there is no such class, throws Error(Exit::data) with the
  // nearest name.
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
