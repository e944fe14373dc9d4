// SPDX-License-Identifier: Apache-2.0
// [log] of the deck.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/log_components.hpp"
#include "config/table.hpp"

namespace records {

struct LogOptions {
  int64_t console_first_steps = 5, console_every_steps = 50, console_window = 1;
  int64_t metrics_every_steps = 1;
  base::log::Level level = base::log::Level::info;
  std::map<std::string, std::string> levels;  // by component
  double flush_s = 30;
  std::vector<std::string> groups;
  bool samples = false, epoch_means = false;
  std::vector<int64_t> memory_steps;
  void bind(config::Table& t);
  void set_levels() const;  // of this process's log
  bool wants_memory(int64_t step) const;
};

}  // namespace records
