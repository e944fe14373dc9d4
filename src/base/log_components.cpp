// SPDX-License-Identifier: Apache-2.0
#include "base/log_components.hpp"

#include <array>
#include <atomic>

#include "base/error.hpp"
#include "base/names.hpp"

namespace base::log {
namespace {

std::array<std::atomic<Level>, std::size(kComponentNames)>& levels() {
  static std::array<std::atomic<Level>, std::size(kComponentNames)> all = [] {
    return std::array<std::atomic<Level>, std::size(kComponentNames)>{
        Level::info, Level::info, Level::info, Level::info, Level::info};
  }();
  return all;
}

}  // namespace

void set_level(std::optional<Component> component, Level level) {
  for (const auto& [name, one] : kComponentNames)
    if (!component || *component == one) levels()[size_t(one)] = level;
}

bool writes(Component component, Level level) { return level <= levels()[size_t(component)]; }

void write_detail(Component component, Level level, const std::string& text) {
  write_line(fmt::format("level={} component={} step={} {}", name_of(kLevelNames, level),
                         name_of(kComponentNames, component), where().step, text));
}

}  // namespace base::log
