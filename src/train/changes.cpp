// SPDX-License-Identifier: Apache-2.0
#include "train/changes.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/text.hpp"
#include "train/recipe.hpp"

namespace train {
namespace {

// True if `entry` is this key or a table above it.
bool covers(const std::string& entry, const std::string& key) {
  return key == entry ||
         (key.starts_with(entry) && (key[entry.size()] == '.' || key[entry.size()] == '['));
}

}  // namespace

bool allows_change(const std::vector<std::string>& allowed, const std::string& key) {
  return std::any_of(allowed.begin(), allowed.end(),
                     [&](const std::string& a) { return covers(a, key); });
}

std::vector<KeyChange> check_changes(const std::string& saved_deck, const config::Deck& deck,
                                     const std::vector<std::string>& allowed) {
  // Problems of the saved deck do not matter, because keys may have been renamed since. Keys that
  // are still known are compared.
  Recipe scratch;
  config::Deck saved({"the checkpoint's deck", saved_deck, {}}, scratch);
  std::map<std::string, std::string> was = saved.flat(), is = deck.flat();
  auto value = [](const std::map<std::string, std::string>& values, const std::string& key) {
    auto found = values.find(key);
    return found == values.end() ? std::string("absent") : found->second;
  };
  std::vector<KeyChange> changes;
  std::vector<std::string> refused, never;
  std::map<std::string, std::string> keys = was;
  keys.insert(is.begin(), is.end());
  for (const std::string& a : allowed)
    if (std::none_of(keys.begin(), keys.end(), [&](const auto& k) { return covers(a, k.first); })) {
      std::vector<std::string> names;
      for (const auto& [key, unused] : keys) names.push_back(key);
      std::string near = config::nearest_key(a, names);
      throw base::Error(base::Exit::config,
                        fmt::format("--allow-change {}: no such key or table{}", a,
                                    near.empty() ? "" : "; did you mean " + near + "?"));
    }
  for (const auto& [key, unused] : keys) {
    KeyChange c{key, value(was, key), value(is, key)};
    if (c.was == c.is) continue;
    config::OnResume rule =
        deck.on_resume(key).value_or(saved.on_resume(key).value_or(config::OnResume::ask));
    c.free = rule == config::OnResume::may_change;
    std::string line = fmt::format("{}: the checkpoint has {}, the deck {}", key, c.was, c.is);
    if (rule == config::OnResume::never)
      never.push_back(line);
    else if (!c.free && !allows_change(allowed, key))
      refused.push_back(line);
    changes.push_back(c);
  }
  if (!never.empty() || !refused.empty()) {
    std::string text = "the deck differs from the one that this run was started with:";
    for (const std::string& line : never)
      text += "\n  " + line + " (can never change: it would make the saved state meaningless)";
    for (const std::string& line : refused) text += "\n  " + line;
    text += never.empty() ? "\nIf that is meant, add --allow-change KEY for each (or for their "
                            "table); else restore the deck"
                          : "\nGive this run another run.dir, or restore the deck";
    throw base::Error(base::Exit::config, text + " (RUN/deck.resolved.toml)");
  }
  return changes;
}

}  // namespace train
