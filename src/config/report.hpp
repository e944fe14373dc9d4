// SPDX-License-Identifier: Apache-2.0
// Collects the problems of a deck and its overrides in the order of the lines. Private to this
// folder.
#pragma once

#include <string>
#include <vector>

#include "config/node.hpp"
#include "config/table.hpp"

namespace config {

class Report {
 public:
  Report(std::string file, std::vector<std::string> overrides, std::vector<std::string> removals);

  // `key` is empty for a problem of an override as a whole.
  void add(Location at, const std::string& key, const std::string& text);
  const Problems& problems() const { return problems_; }
  // True if no further problem will be listed, so that a caller may skip an expensive explanation.
  bool full() const { return entries_.size() >= most; }

 private:
  static constexpr size_t most = 100;
  std::string prefix(Location at, const std::string& key) const;

  struct Entry {
    Location at;
    std::string line;
  };
  std::string file_;
  std::vector<std::string> overrides_, removals_;
  std::vector<Entry> entries_;
  size_t left_out_ = 0;
  Problems problems_;
};

}  // namespace config
