// SPDX-License-Identifier: Apache-2.0
// Options of the published code (/config of a case file) -> ours. What is not known here is an
// error, never ignored.
#pragma once

#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "case_file.hpp"
#include "models/cappa_options.hpp"
#include "models/model.hpp"
#include "optim/options.hpp"
#include "shard/parameter.hpp"

namespace golden {

// A list of patterns with values: the first that fully matches a path wins.
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

  // Training cases.
  optim::OptimizerOptions optimizer;
  Patterns<std::optional<optim::ScheduleOptions>> schedules;  // none: frozen
  Patterns<double> lr_mults, wd_mults;
  optim::Clock clock;

  // What EngineOptions::resolve wants. Schedules: those that are none frozen, in the order of the
  // list.
  void resolve(const std::vector<shard::Parameter>& parameters,
               std::vector<optim::ParameterPolicy>& policies,
               std::vector<optim::Schedule>& made) const;
};

Case translate(const CaseFile& file);

// Where our state tensor (without "/optimizer/") lies below opt_final, after the number of the
// optimizer in the chain: "adafactor/v_row/PATH" -> "0/0/1/PATH" (names: cappa.md 7.1).
std::string published_state_name(const std::string& ours);
// Sets that are there for tensors without that kind of state: [1] zeros.
bool unused_state(const std::string& optimizer, const std::string& place);

}  // namespace golden
