// SPDX-License-Identifier: Apache-2.0
#include "config/overrides.hpp"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "base/text.hpp"
#include "config/toml.hpp"
#include "config/unknown.hpp"
#include "config/write.hpp"

namespace config {
namespace {

constexpr size_t max_parts = 16;

void mark(Node& node, Location at) {
  node.at = at;
  for (Node& item : node.items) mark(item, at);
  for (auto& [name, value] : node.entries) mark(value, at);
}

// Returns the single value of "value = TEXT", or nothing.
std::optional<Node> single_value(const std::string& text, std::string& problem) {
  ParsedToml parsed = parse_toml("value = " + text);
  if (!parsed.problems.empty()) {
    problem = parsed.problems[0].text;
    return {};
  }
  Node* value = parsed.root.find("value");
  if (!value || parsed.root.entries.size() != 1) {
    problem = "more than one value";
    return {};
  }
  return std::move(*value);
}

// Parses a TOML value. Text that is not TOML becomes a string, unless it begins like a value: with
// a quote or a bracket. Times and dates become strings, too, because no key has such a type
// (limits.wall_time=12:00:00).
std::optional<Node> parse_value(const std::string& text, std::string& problem) {
  std::optional<Node> value = single_value(text, problem);
  if (value && value->kind != Node::Kind::date) return value;
  // A number that TOML refuses, for example one that is too large, does not become a string.
  if (text.find_first_not_of("0123456789", text[0] == '-' || text[0] == '+') == text.npos)
    return {};
  if (text.find_first_of("\"'[{") == 0) {
    problem += R"(; if this is text, quote it for the shell and for TOML: --set 'KEY="TEXT"')";
    return {};
  }
  return single_value(toml_string(text), problem);
}

std::optional<size_t> index_of(const std::string& digits) {
  size_t index = 0;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  if (error != std::errc() || end != digits.data() + digits.size()) return {};
  return index;
}

class Overlay {
 public:
  Overlay(const std::string& text, Location at, const Section& schema, Node& deck, Report& report)
      : text_(text), at_(at), schema_(schema), deck_(deck), report_(report) {}

  void apply() {
    size_t equals = text_.find('=');
    if (equals == text_.npos)
      return refuse("expected KEY=VALUE, for example --set train.total_steps=100");
    std::string_view all = text_;
    parts_ = split_key(base::trim(all.substr(0, equals)));
    if (parts_.empty()) return refuse("the key before = is not of the form a.b.c");
    if (parts_.size() > max_parts)
      return refuse(fmt::format("a key with more than {} parts", max_parts));
    std::string value_text(base::trim(all.substr(equals + 1)));
    if (value_text.empty())
      return refuse("no value after =; for an empty string write '\"\"' with both kinds of quotes");
    std::string problem;
    std::optional<Node> value = parse_value(value_text, problem);
    if (!value) return refuse(problem);
    mark(*value, at_);
    Node* target = find_target();
    if (!target) return;
    value->replaced = target->at.origin == 0 && target->kind == Node::Kind::string
                          ? target->string
                          : target->replaced;
    *target = std::move(*value);
  }

 private:
  void refuse(const std::string& why) { report_.add(at_, "", why); }

  std::string path_until(size_t count) const {
    return base::join(std::span(parts_).first(count), ".");
  }

  // Returns the node to assign to; creates the missing tables on its path.
  Node* find_target() {
    Node* node = &deck_;
    const Section* section = &schema_;
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (node->is_table()) {
        section = schema_child(section, parts_[i]);
        auto [entry, is_new] = node->entries.try_emplace(parts_[i]);
        node = &entry->second;
        if (is_new) {
          node->at = at_;
          if (section && section->form == Section::Form::list) node->kind = Node::Kind::array;
        }
      } else if (node->kind == Node::Kind::array) {
        section = schema_child(section, parts_[i]);
        node = element(*node, i);
        if (!node) return nullptr;
      } else {
        refuse(fmt::format("{} is {}, so no key can follow it", path_until(i), found(*node)));
        return nullptr;
      }
    }
    return node;
  }

  // Returns element parts_[i] of a list. An index one past the end adds an element.
  Node* element(Node& list, size_t i) {
    const size_t count = list.items.size();
    const std::optional<size_t> index = index_of(parts_[i]);
    if (!index || *index > count) {
      refuse(fmt::format(
          "{} has {} elements; expected an index of at most {} (which adds one), found {}",
          path_until(i), count, count, quoted(parts_[i])));
      return nullptr;
    }
    if (*index == count) list.items.emplace_back().at = at_;
    return &list.items[*index];
  }

  const std::string& text_;
  Location at_;
  const Section& schema_;
  Node& deck_;
  Report& report_;
  std::vector<std::string> parts_;
};

// Appends the full names of all keys, tables and list elements below a node.
void collect_keys(const Node& node, const std::string& path, std::vector<std::string>& out) {
  for (const auto& [name, value] : node.entries) {
    const std::string key = path + (path.empty() ? "" : ".") + toml_key(name);
    out.push_back(key);
    collect_keys(value, key, out);
  }
  for (size_t i = 0; i < node.items.size(); ++i)
    collect_keys(node.items[i], fmt::format("{}[{}]", path, i), out);
}

// Removes one key. Returns the problem, or "".
std::string remove_key(const std::vector<std::string>& parts, Node& deck) {
  if (parts.empty()) return "this is not a key of the form a.b.c";
  Node* node = &deck;
  for (size_t i = 0; i + 1 < parts.size() && node; ++i) {
    if (node->kind != Node::Kind::array) {
      node = node->find(parts[i]);
      continue;
    }
    const std::optional<size_t> index = index_of(parts[i]);
    node = index && *index < node->items.size() ? &node->items[*index] : nullptr;
  }
  if (node && node->kind == Node::Kind::array)
    return "an element of a list cannot be removed; write the list anew with --set";
  if (node && node->entries.erase(parts.back())) return "";
  std::vector<std::string> keys;
  collect_keys(deck, "", keys);
  const std::string near = nearest_key(base::join(parts, "."), keys);
  return "the deck does not set this key" +
         (near.empty() ? "" : fmt::format("; did you mean {}?", near));
}

}  // namespace

void remove_keys(const std::vector<std::string>& keys, Node& deck, Report& report, bool complete) {
  for (size_t i = 0; i < keys.size(); ++i) {
    const std::string problem = remove_key(split_key(base::trim(keys[i])), deck);
    if (!problem.empty() && complete) report.add({-int(i) - 1, 1}, "", problem);
  }
}

std::string text_override(std::string_view key, std::string_view text) {
  return fmt::format("{}={}", key, toml_string(text));
}

void apply_overrides(const std::vector<std::string>& overrides, const Section& schema, Node& deck,
                     Report& report) {
  for (size_t i = 0; i < overrides.size(); ++i)
    Overlay(overrides[i], {int(i) + 1, 1}, schema, deck, report).apply();
}

}  // namespace config
