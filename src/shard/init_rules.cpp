// SPDX-License-Identifier: Apache-2.0
#include "shard/init_rules.hpp"

#include <fmt/format.h>

#include "base/pattern.hpp"

namespace shard {
namespace {

constexpr std::pair<const char*, Init::Kind> kKindNames[] = {
    {"zeros", Init::Kind::zeros},
    {"ones", Init::Kind::ones},
    {"constant", Init::Kind::constant},
    {"normal", Init::Kind::normal},
    {"uniform", Init::Kind::uniform},
    {"lecun_normal", Init::Kind::lecun_normal},
    {"xavier_uniform", Init::Kind::xavier_uniform}};

bool has_scale(Init::Kind kind) { return kind != Init::Kind::zeros && kind != Init::Kind::ones; }

bool needs_fans(Init::Kind kind) {
  return kind == Init::Kind::lecun_normal || kind == Init::Kind::xavier_uniform;
}

// Returns the distribution that a rule gives a parameter whose own one is `own`.
Init ruled(const InitRule& rule, const Init& own) {
  Init init = own;  // with its fans and its rows of unit length
  init.kind = rule.kind;
  init.value = init.std = init.scale = rule.scale;
  return init;
}

}  // namespace

void InitRule::bind(config::Table& t) {
  t.key("match", match,
        "regular expression that must match the whole parameter path; the first rule wins")
      .required();
  t.choice("kind", kind, kKindNames,
           "the distribution. lecun_normal: normal, cut at two deviations, with variance 1/fan_in; "
           "xavier_uniform: uniform with variance 2/(fan_in + fan_out)")
      .required();
  t.key("scale", scale,
        "constant: the value; normal: the standard deviation; uniform: the limit on both sides of "
        "0; lecun_normal, xavier_uniform: a factor");
  if (std::string problem = base::pattern_problem(match); !problem.empty())
    t.error("match", problem);
  if (!has_scale(kind) && scale != 1)
    t.error("scale", fmt::format("{:g} has no effect with kind = \"{}\"; leave the key out", scale,
                                 base::name_of(kKindNames, kind)));
}

std::string InitRule::problem(const Parameter& parameter) const {
  if (!needs_fans(kind) || parameter.init.fan_in > 0) return "";
  return fmt::format(
      "kind = \"{}\" needs a weight of a matrix product, but {} is not one; use normal, uniform or "
      "constant",
      base::name_of(kKindNames, kind), parameter.path);
}

int rule_of(const std::vector<InitRule>& rules, const Parameter& parameter) {
  if (parameter.kind == ParameterKind::state) return -1;
  for (size_t i = 0; i < rules.size(); ++i)
    if (base::Pattern(rules[i].match).matches(parameter.path)) return int(i);
  return -1;
}

void apply_init_rules(const std::vector<InitRule>& rules, std::vector<Parameter>& parameters) {
  for (Parameter& p : parameters) {
    const int i = rule_of(rules, p);
    if (i < 0) continue;
    const InitRule& rule = rules[size_t(i)];
    if (const std::string problem = rule.problem(p); !problem.empty())
      base::fail(base::Exit::config, "model.init[{}].kind: {}", i, problem);
    p.init = ruled(rule, p.init);
  }
}

}  // namespace shard
