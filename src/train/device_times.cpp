// SPDX-License-Identifier: Apache-2.0
#include "train/device_times.hpp"

#include <fmt/format.h>

#include <cstdlib>

#include "base/text.hpp"

namespace train {

// The times are one text with a line for each kind, because a device's name cannot be a member's
// name.
void DeviceTimes::members(MemberList& list) {
  std::string text;
  for (const auto& [kind, seconds] : seconds_) text += fmt::format("{:.17g} {}\n", seconds, kind);
  list.text("device_s", text);
  seconds_.clear();
  for (const std::string& line : base::split(text, '\n'))
    if (const size_t blank = line.find(' '); blank != line.npos)
      seconds_[line.substr(blank + 1)] = std::strtod(line.c_str(), nullptr);
}

}  // namespace train
