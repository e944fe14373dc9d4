// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "config/dump.hpp"
#include "config/write.hpp"

namespace config {
namespace {

// Returns optimizer.rule.sub for optimizer.rule[0].sub: in TOML a header refers to the last
// element.
std::string header_path(const std::string& path) {
  std::string out;
  bool index = false;
  for (char c : path) {
    if (c == '[') index = true;
    if (!index) out += c;
    if (c == ']') index = false;
  }
  return out;
}

std::string comment(std::string_view doc, bool may_change) {
  std::string out = may_change ? "[R] " : "";
  for (char c : doc) out += c == '\n' ? ' ' : c;
  return out;
}

struct Line {
  std::string name, value, comment;
};

// TOML requires the table's own keys before the tables within it, and the tables of a list element
// before the next element.
void write_section(const Section& section, std::string& out) {
  constexpr size_t longest_aligned = 24;
  bool element = section.parent && section.parent->form != Section::Form::table;
  if (section.parent && section.form == Section::Form::table &&
      (element || !section.rows.empty())) {
    bool list = element && section.parent->form == Section::Form::list;
    std::string path = header_path(section.path), doc = comment(section.doc, false);
    out += fmt::format(fmt::runtime(list ? "\n[[{}]]" : "\n[{}]"), path);
    out += doc.empty() ? "\n" : fmt::format("  # {}\n", doc);
  }
  std::vector<Line> lines;
  for (const auto& row : section.rows) {
    const Duration* duration = std::get_if<Duration>(&row->value);
    if (duration && !duration->set()) continue;
    const std::string* text = std::get_if<std::string>(&row->value);
    lines.push_back({duration ? duration_key(row->name, *duration) : row->name,
                     text ? toml_long_string(*text) : toml_value(row->value),
                     comment(row->doc, row->on_resume == OnResume::may_change)});
  }
  for (const auto& child : section.children)
    if (child->form == Section::Form::list && child->children.empty())
      lines.push_back({child->name, "[]", comment(child->doc, false)});
  size_t names = 0, values = 0;
  for (const Line& line : lines) {
    names = std::max(names, line.name.size());
    if (line.value.size() <= longest_aligned) values = std::max(values, line.value.size());
  }
  for (const Line& line : lines) {
    if (line.comment.empty())
      out += fmt::format("{:<{}} = {}\n", line.name, names, line.value);
    else
      out += fmt::format("{:<{}} = {:<{}}  # {}\n", line.name, names, line.value, values,
                         line.comment);
  }
  for (const auto& child : section.children) write_section(*child, out);
}

}  // namespace

std::string write_resolved(const Section& root) {
  std::string out;
  write_section(root, out);
  return out.starts_with('\n') ? out.substr(1) : out;
}

std::map<std::string, std::string> write_flat(const Section& root) {
  std::map<std::string, std::string> out;
  for_each_section(root, [&out](const Section& section) {
    for (const auto& row : section.rows) out[row->key()] = plain_value(row->value);
  });
  return out;
}

}  // namespace config
