// SPDX-License-Identifier: Apache-2.0
#include "config/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/text.hpp"
#include "config/write.hpp"

namespace config {

Report::Report(std::string file, std::vector<std::string> overrides,
               std::vector<std::string> removals)
    : file_(file.empty() ? "deck" : std::move(file)),
      overrides_(std::move(overrides)),
      removals_(std::move(removals)) {}

std::string Report::prefix(Location at, const std::string& key) const {
  std::string out;
  if (at.origin == 0) {
    out = fmt::format("{}:{}: ", file_, at.line);
  } else if (at.origin < 0) {
    return fmt::format("--unset {}: ", printable(removals_.at(size_t(-at.origin) - 1), 120));
  } else {
    const std::string& override = overrides_.at(size_t(at.origin) - 1);
    out = fmt::format("--set {}: ", printable(override, 120));
    std::string_view path = base::trim(std::string_view(override).substr(0, override.find('=')));
    if (split_key(key) == split_key(path)) return out;  // the override names the key already
  }
  return key.empty() ? out : out + key + ": ";
}

void Report::add(Location at, const std::string& key, const std::string& text) {
  if (full()) {
    std::string rest = fmt::format("{}: {} more problems", file_, ++left_out_);
    if (left_out_ == 1)
      problems_.lines.push_back(rest);
    else
      problems_.lines.back() = rest;
    return;
  }
  entries_.push_back({at, prefix(at, key) + text});
  std::stable_sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.at.origin, a.at.line) < std::tie(b.at.origin, b.at.line);
  });
  problems_.lines.clear();
  for (const Entry& entry : entries_) problems_.lines.push_back(entry.line);
}

}  // namespace config
