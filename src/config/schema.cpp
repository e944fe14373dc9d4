// SPDX-License-Identifier: Apache-2.0
#include "config/schema.hpp"

namespace config {

std::string Row::key() const { return section->path.empty() ? name : section->path + "." + name; }

bool Row::has_name(std::string_view text) const {
  return name == text || (type == Type::duration && name == without_suffix(text) && !name.empty());
}

Row* Section::find_row(std::string_view row_name) const {
  for (const auto& row : rows)
    if (row->has_name(row_name)) return row.get();
  return nullptr;
}

Section* Section::find_child(std::string_view child_name) const {
  for (const auto& child : children)
    if (child->name == child_name) return child.get();
  return nullptr;
}

Location Section::where() const {
  if (node) return node->at;
  return parent ? parent->where() : Location{};
}

const Section* schema_child(const Section* schema, std::string_view name) {
  if (!schema) return nullptr;
  if (schema->same_as) schema = schema->same_as;
  if (schema->form != Section::Form::table)
    return schema->children.empty() ? nullptr : schema->children.front().get();
  return schema->find_child(name);
}

std::vector<std::string> kinds_with(const Section* schema, std::string_view name,
                                    std::string& kind_key) {
  std::vector<std::string> kinds;
  if (schema && schema->same_as) schema = schema->same_as;
  if (!schema) return kinds;
  auto take = [&](const std::string& key, const std::vector<std::string>& names) {
    kind_key = key;
    kinds.insert(kinds.end(), names.begin(), names.end());
  };
  for (const auto& row : schema->rows)
    if (!row->kinds.empty() && row->has_name(name)) take(row->kind_key, row->kinds);
  for (const auto& child : schema->children)
    if (child->name == name && !child->kinds.empty()) take(child->kind_key, child->kinds);
  return kinds;
}

void for_each_section(const Section& root, const std::function<void(const Section&)>& visit) {
  visit(root);
  for (const auto& child : root.children) for_each_section(*child, visit);
}

std::vector<std::string> spellings(std::string_view duration_name) {
  std::vector<std::string> out;
  for (const Spelling& s : duration_spellings) out.push_back(std::string(duration_name) + s.suffix);
  return out;
}

std::vector<std::string> spellings(const Row& duration) {
  std::vector<std::string> out = spellings(duration.name);
  if (duration.no_fraction) std::erase(out, duration.name + "_fraction");
  return out;
}

std::string_view without_suffix(std::string_view name) {
  for (const Spelling& s : duration_spellings)
    if (name.ends_with(s.suffix))
      return name.substr(0, name.size() - std::string_view(s.suffix).size());
  return {};
}

}  // namespace config
