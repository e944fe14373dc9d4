// SPDX-License-Identifier: Apache-2.0
#include "data/sources/shard_options.hpp"

#include "base/error.hpp"
#include "data/sources/brace.hpp"
#include "data/sources/file_pattern.hpp"

namespace data {

std::vector<std::string> ShardOptions::files() const { return files_matching(path); }

void ShardOptions::bind_shards(
    config::Table& t, std::string_view path_doc, std::string_view fields_doc,
    std::function<std::string(const std::string&, const std::string&)> problem) {
  t.key("path", path, path_doc).required().unit("path").check([this] {
    try {
      check_braces(path);
    } catch (const base::Error& e) {
      return std::string(e.what());
    }
    return path.empty() ? std::string("is empty") : std::string();
  });
  t.key("fields", fields, fields_doc).required().check([this, problem = std::move(problem)] {
    for (const auto& [field, text] : fields)
      if (std::string p = problem(field, text); !p.empty()) return p;
    return fields.empty() ? std::string("names no field") : std::string();
  });
}

}  // namespace data
