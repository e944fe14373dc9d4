// SPDX-License-Identifier: Apache-2.0
// [log] of the deck.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/log_components.hpp"
#include "config/table.hpp"

namespace records {

// The tensors whose statistics a step can log.
enum class Looked { weights, gradients, updates, activations };
inline constexpr std::pair<const char*, Looked> kLookedNames[] = {
    {"weights", Looked::weights},
    {"gradients", Looked::gradients},
    {"updates", Looked::updates},
    {"activations", Looked::activations}};

// [[log.histograms]], [[log.rms]]
struct LookRule {
  std::string match = ".*";
  std::vector<std::string> of = {"weights", "gradients"};
  int64_t every_steps = 100;
  void bind(config::Table& t);
};

struct LogOptions {
  int64_t console_first_steps = 5, console_every_steps = 50, console_window = 1;
  int64_t metrics_every_steps = 1;
  base::log::Level level = base::log::Level::info;
  std::map<std::string, std::string> levels;  // by component
  double flush_s = 30;
  std::vector<std::string> groups;
  bool samples = false, epoch_means = false, tensorboard = false;
  std::vector<int64_t> memory_steps;
  std::vector<LookRule> histograms, rms;
  void bind(config::Table& t);
  // Checks that each regular expression matches a parameter, or a block for activations.
  void check_paths(config::Deck& deck, const std::vector<std::string>& parameters,
                   const std::vector<std::string>& blocks) const;
  void set_levels() const;  // of this process's log
  bool wants_memory(int64_t step) const;
};

}  // namespace records
