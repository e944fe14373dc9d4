// SPDX-License-Identifier: Apache-2.0
#include "data/ops/count_lines.hpp"

#include <fmt/format.h>

#include "base/text.hpp"

namespace data {

std::vector<std::string> count_lines(const std::string& dataset,
                                     const std::map<std::string, int64_t>& counts) {
  constexpr std::string_view kSuffix = ".captions";
  std::vector<std::string> out;
  for (const auto& [name, all] : counts) {
    if (!name.ends_with(kSuffix)) continue;
    const int64_t cut = counts.at(name + "_cut"), empty = counts.at(name + "_empty");
    out.push_back(
        fmt::format("captions {} {}: {:.2f} % of {} were cut at max_len{}", dataset,
                    name.substr(0, name.size() - kSuffix.size()),
                    all ? 100 * double(cut) / double(all) : 0.0, base::with_commas(all),
                    empty ? fmt::format(", {} were empty", base::with_commas(empty)) : ""));
  }
  return out;
}

}  // namespace data
