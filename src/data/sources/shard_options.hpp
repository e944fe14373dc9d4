// SPDX-License-Identifier: Apache-2.0
// The options that sources of several files share: the files, and the part of a sample that becomes
// each field.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "data/sources/source.hpp"

namespace data {

struct ShardOptions : SourceOptions {
  std::string path;                           // with braces and *, ?, [...]
  std::map<std::string, std::string> fields;  // field -> its part of a sample
  std::vector<std::string> files() const override;

 protected:
  // `problem` checks one entry of `fields` and returns "" or the problem.
  void bind_shards(
      config::Table& t, std::string_view path_doc, std::string_view fields_doc,
      std::function<std::string(const std::string& field, const std::string& text)> problem);
};

}  // namespace data
