// SPDX-License-Identifier: Apache-2.0
#include "config/leftovers.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.hpp"
#include "config/write.hpp"

namespace config {
namespace {

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Returns the row that a kind has for this name; null if the kind has no row of its own.
const Row* row_of_kind(const Section& schema, const std::string& name, const Row& choice,
                       const std::string& kind) {
  for (const auto& row : schema.rows)
    if (row->kind_key == choice.name && row->has_name(name) && has(row->kinds, kind))
      return row.get();
  return nullptr;
}

std::string text_of(const Row& row) {
  return row.required ? row.doc : fmt::format("{}; default {}", row.doc, plain_value(row.value));
}

// Examines one table of the deck, with the row that picks its kind.
class Leftovers {
 public:
  Leftovers(const Section& section, const Row& choice, Report& report)
      : section_(section),
        schema_(section.schema->same_as ? *section.schema->same_as : *section.schema),
        choice_(choice),
        chosen_(std::get<std::string>(choice.value)),
        report_(report) {}

  void find() {
    if (choice_.node && choice_.node->at.origin > 0)
      after_override();
    else
      within_deck();
  }

 private:
  // --set has changed the kind: the deck wrote its keys for the kind before.
  void after_override() {
    const Row* described = schema_.find_row(choice_.name);
    const std::string was =
        choice_.node->replaced.value_or(std::get<std::string>(described->value));
    if (was == chosen_) return;
    std::vector<std::string> left;
    for (const auto& [name, node] : section_.node->entries) {
      if (node.at.origin != 0) continue;
      std::string key;
      const std::vector<std::string> kinds = kinds_with(&schema_, name, key);
      if (key != choice_.name || !has(kinds, was)) continue;
      if (!has(kinds, chosen_)) {
        left.push_back(key_of(name));  // report_unknown has already refused this key
      } else if (const Row* old = row_of_another_meaning(name, was)) {
        left.push_back(key_of(name));
        report_.add(
            node.at, left.back(),
            fmt::format(
                "written for {} = {} ({}), but {} = {} would read it with another meaning ({})",
                choice_.name, quoted(was), text_of(*old), choice_.name, quoted(chosen_),
                text_of(*new_row(name))));
      }
    }
    if (left.empty()) return;
    report_.add(choice_.node->at, choice_.key(),
                fmt::format("the deck wrote this table for {0} = {1}. Remove the keys that were "
                            "meant for it (--unset {2}), give them new values by --set, or write "
                            "the whole table anew: --set '{3}={{{0}={4}, ...}}'",
                            choice_.name, quoted(was), base::join(left, " --unset "), section_.path,
                            quoted(chosen_)));
  }

  // The kind was changed in the deck itself. Refused keys of another kind show that the remaining
  // keys may have been written for that kind.
  void within_deck() {
    std::vector<std::string> others = other_kinds();
    if (others.empty()) return;
    for (const auto& [name, node] : section_.node->entries) {
      if (node.at.origin != 0) continue;
      for (const std::string& other : others) {
        const Row* old = row_of_another_meaning(name, other);
        if (!old || old->required) continue;
        report_.add(node.at, key_of(name),
                    fmt::format("is this meant for {} = {} ({})? The table holds keys of {} = {}, "
                                "where it means: {}",
                                choice_.name, quoted(chosen_), text_of(*new_row(name)),
                                choice_.name, quoted(other), text_of(*old)));
        break;
      }
    }
  }

  // Returns the kinds that have all the keys which the chosen kind lacks.
  std::vector<std::string> other_kinds() const {
    std::vector<std::string> out;
    bool first = true;
    for (const auto& [name, node] : section_.node->entries) {
      if (name == choice_.name) continue;  // an enclosing table has listed its kinds
      std::string key;
      const std::vector<std::string> kinds = kinds_with(&schema_, name, key);
      if (key != choice_.name || node.at.origin != 0 || has(kinds, chosen_)) continue;
      if (first) out = kinds;
      std::erase_if(out, [&](const std::string& kind) { return !has(kinds, kind); });
      first = false;
    }
    return out;
  }

  // Returns the other kind's row of a key that both kinds have with different meanings. Returns
  // null if the deck gives the key its new default.
  const Row* row_of_another_meaning(const std::string& name, const std::string& other) const {
    const Row *old = row_of_kind(schema_, name, choice_, other), *now = new_row(name);
    if (!old || !now || old == now) return nullptr;
    const Row* read = section_.find_row(name);
    const bool is_default =
        read && !now->required && plain_value(read->value) == plain_value(now->value);
    return is_default ? nullptr : old;
  }

  const Row* new_row(const std::string& name) const {
    return row_of_kind(schema_, name, choice_, chosen_);
  }
  std::string key_of(const std::string& name) const {
    return (section_.path.empty() ? "" : section_.path + ".") + printable(toml_key(name));
  }

  const Section& section_;
  const Section& schema_;
  const Row& choice_;
  const std::string chosen_;
  Report& report_;
};

}  // namespace

void report_leftovers(const Section& root, Report& report) {
  for_each_section(root, [&](const Section& section) {
    if (!section.schema || !section.node || section.form != Section::Form::table ||
        section.kind_unknown)
      return;
    const Section& schema = section.schema->same_as ? *section.schema->same_as : *section.schema;
    std::vector<std::string> choices;
    for (const auto& row : schema.rows)
      if (!row->kinds.empty() && !has(choices, row->kind_key)) choices.push_back(row->kind_key);
    for (const std::string& name : choices)
      if (const Row* choice = section.find_row(name); choice && choice->type == Type::string)
        Leftovers(section, *choice, report).find();
  });
}

}  // namespace config
