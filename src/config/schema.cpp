#include "config/schema.hpp"

namespace config {

std::string Row::key() const { return section->path.empty() ? name : section->path + "." + name; }

Row* Section::find_row(std::string_view row_name) const {
  std::string_view base = without_suffix(row_name);
  for (const auto& row : rows)
    if (row->name == row_name || (row->type == Type::duration && row->name == base && !base.empty())) return row.get();
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
  if (schema->form != Section::Form::table) return schema->children.empty() ? nullptr : schema->children.front().get();
  return schema->find_child(name);
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
    if (name.ends_with(s.suffix)) return name.substr(0, name.size() - std::string_view(s.suffix).size());
  return {};
}

}  // namespace config
