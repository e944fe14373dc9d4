// SPDX-License-Identifier: Apache-2.0
// What sources of several files have in common: where the files are, and which part of a sample
// becomes which field.
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
  std::map<std::string, std::string> fields;  // field -> what it is made of
  std::vector<std::string> files() const override;

 protected:
  // `problem` looks at one entry of `fields` (which are not empty): "" or what is wrong.
  void bind_shards(
      config::Table& t, std::string_view path_doc, std::string_view fields_doc,
      std::function<std::string(const std::string& field, const std::string& text)> problem);
};

}  // namespace data
