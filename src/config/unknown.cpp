// SPDX-License-Identifier: Apache-2.0
#include "config/unknown.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.hpp"
#include "config/write.hpp"

namespace config {
namespace {

constexpr size_t longest_name = 64;
constexpr size_t most_listed = 12;
constexpr size_t most_places = 3;

// Returns all names that a table knows, with each spelling of a duration.
std::vector<std::string> names_in(const Section& section) {
  std::vector<std::string> names;
  for (const auto& row : section.rows) {
    if (row->type == Type::duration)
      for (const std::string& s : spellings(*row)) names.push_back(s);
    else
      names.push_back(row->name);
  }
  for (const auto& child : section.children) names.push_back(child->name);
  return names;
}

// Returns the names that a table knows, in short form: total_* instead of four names.
std::vector<std::string> short_names_in(const Section& section) {
  std::vector<std::string> names;
  for (const auto& row : section.rows)
    names.push_back(row->type == Type::duration ? row->name + "_*" : row->name);
  for (const auto& child : section.children) names.push_back(child->name);
  return names;
}

std::string header(const Section& section) {
  if (section.path.empty()) return "the top of the deck";
  if (section.path.ends_with("[]"))
    return fmt::format("[[{}]]", section.path.substr(0, section.path.size() - 2));
  return fmt::format("[{}]", section.path);
}

// Returns the row that picks the kind, from this table or the nearest one above it.
const Row* kind_row(const Section& section, const std::string& key) {
  for (const Section* s = &section; s; s = s->parent)
    if (const Row* row = s->find_row(key)) return row;
  return nullptr;
}

// Returns lr for learning_rate.
std::string initials(std::string_view name) {
  std::string out;
  for (size_t i = 0; i < name.size(); ++i)
    if (name[i] != '_' && (i == 0 || name[i - 1] == '_')) out += name[i];
  return out;
}

class Reporter {
 public:
  Reporter(const Section& schema, Report& report, bool complete)
      : schema_(schema), report_(report), complete_(complete) {}

  void visit(const Section& section) {
    if (!section.node || section.form != Section::Form::table) return;
    for (const auto& [name, node] : section.node->entries)
      if (!node.known) unknown(section, name, node);
  }

 private:
  void unknown(const Section& section, const std::string& name, const Node& node) {
    std::string key = section.path.empty() ? "" : section.path + ".";
    key += printable(toml_key(name));
    std::string kind_key;
    std::vector<std::string> kinds = kinds_with(section.schema, name, kind_key);
    if (!kinds.empty()) {
      const Row* chosen = kind_row(section, kind_key);
      bool unsure = section.kind_unknown || !complete_;
      if (!unsure && !report_.full())
        report_.add(node.at, key, belongs_to(name, kind_key, kinds, chosen));
      return;
    }
    report_.add(node.at, key, report_.full() ? "" : explain(section, name, node));
  }

  static std::string belongs_to(const std::string& name, const std::string& kind_key,
                                const std::vector<std::string>& kinds, const Row* chosen) {
    std::vector<std::string> texts;
    for (const std::string& kind : kinds) texts.push_back(quoted(kind));
    std::string has = chosen ? fmt::format(", this table has {} = {}", kind_key,
                                           quoted(std::get<std::string>(chosen->value)))
                             : "";
    return fmt::format("key {} belongs to {} = {}{}", name, kind_key, base::join(texts, ", "), has);
  }

  std::string explain(const Section& section, const std::string& name, const Node& node) const {
    bool table = node.is_table() || (node.kind == Node::Kind::array && !node.items.empty() &&
                                     node.items[0].is_table());
    std::string text = table ? "unknown table" : "unknown key";
    for (const auto& row : section.rows)
      if (row->type == Type::duration && row->name == name)
        return fmt::format("{}; write one of {}", text, base::join(spellings(*row), ", "));

    std::vector<std::string> names = names_in(section);
    std::string near = nearest(name, names);
    if (!near.empty()) text += fmt::format("; did you mean {}?", near);
    std::vector<std::string> places = tables_with(name);
    if (!places.empty()) {
      text += fmt::format("; {} {} a key of this name", base::join(places, ", "),
                          places.size() == 1 ? "has" : "have");
    } else if (near.empty()) {
      if (std::string elsewhere = nearest_anywhere(name); !elsewhere.empty())
        text += fmt::format("; did you mean {}?", elsewhere);
      else if (std::vector<std::string> known = short_names_in(section);
               known.size() <= most_listed)
        text += fmt::format("; known here: {}", base::join(known, ", "));
      else
        text += section.path.empty() ? "; --describe lists all keys"
                                     : fmt::format("; --describe {} lists the keys", section.path);
    }
    return text;
  }

  // Returns the tables that have a key or a table of exactly this name.
  std::vector<std::string> tables_with(const std::string& name) const {
    std::vector<std::string> places;
    for_each_section(schema_, [&](const Section& s) {
      if (s.form == Section::Form::table && places.size() < most_places &&
          (s.find_row(name) || s.find_child(name)))
        places.push_back(header(s));
    });
    return places;
  }

  // Returns the full name of the nearest key of the whole deck.
  std::string nearest_anywhere(const std::string& name) const {
    std::vector<std::string> names, full;
    for_each_section(schema_, [&](const Section& s) {
      if (s.form != Section::Form::table) return;
      for (std::string& n : names_in(s)) {
        full.push_back(s.path.empty() ? n : s.path + "." + n);
        names.push_back(std::move(n));
      }
    });
    std::string near = nearest(name, names);
    // Some key of the whole deck is always roughly similar, so the limit is stricter here.
    if (near.empty() || size_t(base::edit_distance(name, near)) > name.size() / 6) return {};
    return full[size_t(std::find(names.begin(), names.end(), near) - names.begin())];
  }

  const Section& schema_;
  Report& report_;
  bool complete_;
};

}  // namespace

std::string nearest(std::string_view name, std::span<const std::string> candidates) {
  if (name.size() > longest_name) return {};
  std::string found = base::nearest_name(name, candidates);
  // A common suffix such as _every_steps makes unlike names similar, so it does not count.
  size_t length = without_suffix(name).empty() ? name.size() : without_suffix(name).size();
  bool near = !found.empty() && size_t(base::edit_distance(name, found)) <= 1 + length / 4;
  if (near) return found;
  auto abbreviated = std::find_if(candidates.begin(), candidates.end(),
                                  [&](const std::string& c) { return initials(c) == name; });
  return name.size() > 1 && abbreviated != candidates.end() ? *abbreviated : std::string();
}

std::string nearest_key(std::string_view key, std::span<const std::string> known) {
  const std::vector<std::string> wanted = split_key(key);
  std::string found;
  int least = 0;
  for (const std::string& candidate : known) {
    const std::vector<std::string> parts = split_key(candidate);
    if (parts.size() != wanted.size()) continue;
    int distance = 0;
    bool near = true;
    for (size_t i = 0; near && i < parts.size(); ++i) {
      near = !nearest(wanted[i], std::span(&parts[i], 1)).empty() ||
             without_suffix(parts[i]) == wanted[i];
      if (near) distance += base::edit_distance(wanted[i], parts[i]);
    }
    if (near && (found.empty() || distance < least)) {
      found = candidate;
      least = distance;
    }
  }
  return found;
}

void report_unknown(const Section& root, const Section& schema, Report& report, bool complete) {
  Reporter reporter(schema, report, complete);
  for_each_section(root, [&](const Section& section) { reporter.visit(section); });
}

}  // namespace config
