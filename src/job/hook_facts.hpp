// SPDX-License-Identifier: Apache-2.0
// The facts that a hook gets about an event, in two forms: JSON and environment variables.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace job {

struct HookFact {
  using Values = std::vector<std::pair<std::string, double>>;
  std::string name;  // small letters and _
  std::variant<int64_t, double, std::string, Values> value;
};
using HookFacts = std::vector<HookFact>;

// Returns one JSON object on one line. Numbers that are not finite become null.
std::string json_of(const HookFacts& facts);
// Returns the environment of a hook: `variables`, and one variable for each fact except lists of
// values: the fact "step" is TRAINER_STEP. If the command of another hook has started this job, the
// facts of that hook are left out.
std::vector<std::string> environment_of(const HookFacts& facts, std::vector<std::string> variables);

}  // namespace job
