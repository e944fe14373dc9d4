// SPDX-License-Identifier: Apache-2.0
// Checks of the keys that name parameters by their paths.
#include <algorithm>

#include "base/pattern.hpp"
#include "train/recipe.hpp"

namespace train {
namespace {

// Checks that each of the rules [[KEY]] matches a parameter that earlier rules do not match.
template <class Rule>
void check_rules(const std::string& key, const std::vector<Rule>& rules, config::Deck& deck,
                 const std::vector<std::string>& paths) {
  std::vector<std::string> left = paths;  // parameters that no rule matched so far
  for (size_t i = 0; i < rules.size(); ++i) {
    const base::Pattern match(rules[i].match);
    auto matched = [&](const std::string& p) { return match.matches(p); };
    if (std::none_of(paths.begin(), paths.end(), matched))
      deck.error(fmt::format("{}.{}.match", key, i),
                 fmt::format("\"{}\" matches no parameter", rules[i].match));
    else if (std::erase_if(left, matched) == 0)
      deck.error(
          fmt::format("{}.{}.match", key, i),
          fmt::format("\"{}\" is never reached: the rules before it take all that it matches",
                      rules[i].match));
  }
}

// Checks the rules of initial distributions. They leave states as they are.
void check_init_rules(const std::vector<shard::InitRule>& rules, config::Deck& deck,
                      const std::vector<shard::Parameter>& parameters) {
  std::vector<std::string> paths;
  std::vector<std::string> problems(rules.size());  // the first one of each rule
  for (const shard::Parameter& p : parameters) {
    if (p.kind != shard::ParameterKind::state) paths.push_back(p.path);
    if (const int i = shard::rule_of(rules, p); i >= 0 && problems[size_t(i)].empty())
      problems[size_t(i)] = rules[size_t(i)].problem(p);
  }
  check_rules("model.init", rules, deck, paths);
  for (size_t i = 0; i < rules.size(); ++i)
    if (!problems[i].empty()) deck.error(fmt::format("model.init.{}.kind", i), problems[i]);
}

}  // namespace

void Recipe::check_paths(config::Deck& deck, const models::Model& made) const {
  const std::vector<shard::Parameter> parameters = made.parameters();
  std::vector<std::string> paths;
  for (const shard::Parameter& p : parameters) paths.push_back(p.path);
  for (const auto& [ours, theirs] : init.map)
    if (!ours.empty() &&
        std::none_of(paths.begin(), paths.end(), [&prefix = ours](const std::string& p) {
          return p == prefix || p.starts_with(prefix + "/");
        }))
      deck.error(
          "init.map",
          fmt::format(
              "\"{}\" is neither a parameter of this model nor the beginning of one up to a '/'",
              ours));
  if (!init.from.empty() && !checkpoint.branch_from.empty())
    deck.error("init.from",
               "a run begins from these parameters or from checkpoint.branch_from, not from both");
  for (const optim::Problem& p : optim::resolve_policies(optimizer, schedule, parameters).problems)
    deck.error(p.key, p.text);
  check_rules("sharding.rule", sharding.rules, deck, paths);
  check_init_rules(model.init, deck, parameters);
  log.check_paths(deck, paths, made.blocks());
  for (const std::string& path : paths) {
    try {
      sharding.strategy_of(path);
    } catch (const base::Error& e) {
      deck.error("sharding.optimizer", e.what());
      break;
    }
  }
}

}  // namespace train
