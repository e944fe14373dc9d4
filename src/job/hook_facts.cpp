// SPDX-License-Identifier: Apache-2.0
#include "job/hook_facts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <string_view>

namespace job {
namespace {

using Json = nlohmann::ordered_json;

Json json_value(const HookFact::Values& values) {
  Json out = Json::object();
  for (const auto& [name, value] : values) out[name] = value;
  return out;
}
template <class T>
Json json_value(const T& value) {
  return value;
}

// The facts that an event may have. Other TRAINER_ variables are not from hooks, and stay.
constexpr const char* kNames[] = {"event",   "run",  "name",   "step",  "total",   "ranks",
                                  "attempt", "loss", "eval",   "best",  "file",    "bytes",
                                  "exit",    "rank", "reason", "phase", "left_out"};

std::string variable_of(std::string_view name) {
  std::string out = "TRAINER_";
  for (const char c : name) out += char(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

std::string text_of(const HookFact& fact) {
  if (const auto* text = std::get_if<std::string>(&fact.value)) return *text;
  if (const auto* number = std::get_if<double>(&fact.value)) return fmt::format("{:.9g}", *number);
  return fmt::format("{}", std::get<int64_t>(fact.value));
}

}  // namespace

std::string json_of(const HookFacts& facts) {
  Json out;
  for (const HookFact& fact : facts)
    out[fact.name] = std::visit([](const auto& value) { return json_value(value); }, fact.value);
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<std::string> environment_of(const HookFacts& facts,
                                        std::vector<std::string> variables) {
  for (const char* name : kNames)
    std::erase_if(variables, [begin = variable_of(name) + "="](const std::string& variable) {
      return variable.starts_with(begin);
    });
  for (const HookFact& fact : facts)
    if (!std::holds_alternative<HookFact::Values>(fact.value))
      variables.push_back(variable_of(fact.name) + "=" + text_of(fact));
  return variables;
}

}  // namespace job
