// SPDX-License-Identifier: Apache-2.0
// Parts of the program whose lines have a level of their own (log.level, log.levels). Lines of
// base/log.hpp without a component are always written: warnings, errors, a run's start and end.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/log.hpp"

namespace base::log {

enum class Component { run, data, train, eval, checkpoint };
inline constexpr std::pair<const char*, Component> kComponentNames[] = {
    {"run", Component::run},
    {"data", Component::data},
    {"train", Component::train},
    {"eval", Component::eval},
    {"checkpoint", Component::checkpoint}};

// Each level includes those before it.
enum class Level { warning, info, debug, trace };
inline constexpr std::pair<const char*, Level> kLevelNames[] = {{"warning", Level::warning},
                                                                {"info", Level::info},
                                                                {"debug", Level::debug},
                                                                {"trace", Level::trace}};

// Sets the level of a component, or of all; at first all have Level::info.
void set_level(std::optional<Component> component, Level level);
bool writes(Component component, Level level);
// Writes a line with level, component and step.
void write_detail(Component component, Level level, const std::string& text);

// Lines for people who watch the run; they begin as lines of log::line do.
template <class... Args>
void info(Component component, fmt::format_string<Args...> format, Args&&... args) {
  if (writes(component, Level::info)) write_line(fmt::format(format, std::forward<Args>(args)...));
}
// Lines for people who look for a fault: what a component does (debug), each time (trace).
template <class... Args>
void debug(Component component, fmt::format_string<Args...> format, Args&&... args) {
  if (writes(component, Level::debug))
    write_detail(component, Level::debug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void trace(Component component, fmt::format_string<Args...> format, Args&&... args) {
  if (writes(component, Level::trace))
    write_detail(component, Level::trace, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace base::log
