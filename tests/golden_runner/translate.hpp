// SPDX-License-Identifier: Apache-2.0
// Translates options of the published code (/config of a case file) into ours. An unknown option is
// an error and is never ignored.
#pragma once

#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "case_file.hpp"
#include "models/captions/cappa_options.hpp"
#include "models/model.hpp"
#include "optim/options.hpp"
#include "shard/parameter.hpp"

namespace golden {

// A list of patterns with values. The first pattern that fully matches a path gives its value.
template <class Value>
struct Patterns {
  struct Entry {
    std::string text;
    std::regex regex;
    Value value;
  };
  std::vector<Entry> entries;
  int find(const std::string& path) const {
    for (size_t i = 0; i < entries.size(); ++i)
      if (std::regex_match(path, entries[i].regex)) return int(i);
    return -1;
  }
};

struct Case {
  std::string name;
  bool training = false;
  int64_t batch = 0, steps = 0;
  std::shared_ptr<models::CappaOptions> model;

  // Members for training cases only
  optim::OptimizerOptions optimizer;
  Patterns<std::optional<optim::ScheduleOptions>> schedules;  // none: frozen
  Patterns<double> lr_mults, wd_mults;
  optim::Clock clock;

  // Gives policies and schedules as EngineOptions::resolve must. `made` gets the schedules that are
  // not frozen, in the order of the list.
  void resolve(const std::vector<shard::Parameter>& parameters,
               std::vector<optim::ParameterPolicy>& policies,
               std::vector<optim::Schedule>& made) const;
};

Case translate(const CaseFile& file);
// Translates /config's train.* into the members for training cases. c.model and c.clock must be
// set.
void translate_training(const CaseFile& file, Case& c);

// Returns the path of our state tensor (without "/optimizer/") below opt_final, after the number of
// the optimizer in the chain: "adafactor/v_row/PATH" -> "0/0/1/PATH" (names: cappa.md 7.1).
std::string published_state_name(const std::string& ours);
// True for the placeholders, [1] zeros, of tensors without that kind of state.
bool unused_state(const std::string& optimizer, const std::string& place);

}  // namespace golden
