// SPDX-License-Identifier: Apache-2.0
#include "config/binder.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/text.hpp"
#include "config/write.hpp"

namespace config {
namespace {

constexpr size_t max_elements = 4096;

std::vector<std::string> names_of(const Row& row) {
  return row.type == Type::duration ? spellings(row.name) : std::vector<std::string>{row.name};
}

std::string key_in(const Section& section, std::string_view name) {
  return section.path.empty() ? std::string(name) : fmt::format("{}.{}", section.path, name);
}

// Returns "[train]", "optimizer.rule[0]" or "the top of the deck".
std::string place(const Section& section) {
  if (section.path.empty()) return "the top of the deck";
  return section.path.back() == ']' ? section.path : fmt::format("[{}]", section.path);
}

bool same_shape(const Row& a, const Row& b) {
  return a.type == b.type && a.doc == b.doc && plain_value(a.value) == plain_value(b.value) &&
         a.required == b.required && a.on_resume == b.on_resume && a.unit == b.unit &&
         range_text(a) == range_text(b);
}

}  // namespace

Binder::Binder() = default;

Binder::Binder(Node& deck, const Section& schema, Report& report, bool complete)
    : report_(&report) {
  root_.node = &deck;
  root_.schema = &schema;
  root_.mute_missing = !complete;
}

void Binder::bind_root(const std::function<void(Table&)>& bind) {
  run_bind(root_, bind);
  CHECK(defects_.empty(), "{}", base::join(defects_, "; "));
}

void Binder::run_bind(Section& section, const std::function<void(Table&)>& bind) {
  size_t first = checks_.size();
  Table table(*this, section);
  bind(table);
  // A check may look at all members of the table. Therefore checks run when the table is complete,
  // and before a list can move it.
  for (size_t i = first; i < checks_.size(); ++i) {
    Row& row = *checks_[i];
    std::string text = row.check();
    if (!text.empty()) problem(row.node ? row.node->at : section.where(), row.key(), text);
    row.check = nullptr;
  }
  checks_.resize(first);
}

void Binder::bind(Section& section, const void* tag, const std::function<void(Table&)>& bind) {
  if (!reading())
    for (const Open& open : open_)
      if (open.tag == tag) {
        section.same_as = open.section;
        return;
      }
  open_.push_back({tag, &section});
  run_bind(section, bind);
  open_.pop_back();
}

namespace {

// Two kinds may use one name in two forms: [model.loss] and [[model.loss]].
Section* child_of_form(const Section& parent, std::string_view name, Section::Form form) {
  for (const auto& child : parent.children)
    if (child->name == name && child->form == form) return child.get();
  return nullptr;
}

const Section* schema_of_form(const Section* schema, std::string_view name, Section::Form form) {
  if (schema && schema->form == Section::Form::table && !schema->same_as)
    if (const Section* child = child_of_form(*schema, name, form)) return child;
  return schema_child(schema, name);
}

}  // namespace

Section& Binder::child(Section& parent, const std::string& name, Section::Form form,
                       std::string_view doc) {
  if (Section* known = child_of_form(parent, name, form)) {
    if (!known->kinds.empty()) {
      if (kinds_.empty())
        known->kinds.clear();  // the child belongs to every kind
      else if (std::find(known->kinds.begin(), known->kinds.end(), kinds_.back().name) ==
               known->kinds.end())
        known->kinds.push_back(kinds_.back().name);
    }
    return *known;
  }
  const Section* other = parent.find_child(name);
  CHECK(!other || (!other->kinds.empty() && !kinds_.empty()),
        "[{}] is bound both as a table and as several", other->path);
  auto made = std::make_unique<Section>();
  made->parent = &parent;
  made->form = form;
  made->name = name;
  made->path = name.front() == '[' ? parent.path + name : key_in(parent, name);
  made->doc = doc;
  made->schema = schema_of_form(parent.schema, name, form);
  made->mute_missing = parent.mute_missing;
  made->from_program = parent.from_program;
  if (!kinds_.empty()) {
    made->kind_key = kinds_.back().key;
    made->kinds = {kinds_.back().name};
  }
  parent.children.push_back(std::move(made));
  return *parent.children.back();
}

void Binder::attach(Section& child) {
  Node* above = child.parent->node;
  attach(child, above ? above->find(child.name) : nullptr);
}

void Binder::attach(Section& child, Node* node) {
  if (!node) return;
  node->known = true;
  Node::Kind wanted = child.form == Section::Form::list ? Node::Kind::array : Node::Kind::table;
  if (node->kind == wanted) {
    child.node = node;
    return;
  }
  child.mute_missing = true;
  std::string text;
  if (child.form == Section::Form::list)
    text =
        fmt::format("expected a list of tables, found {}; write [[{}]]", found(*node), child.path);
  else if (node->kind == Node::Kind::array && child.name.front() != '[')
    text = fmt::format("expected one table, found {}; write [{}]", found(*node), child.path);
  else if (child.parent->form == Section::Form::named)
    text = fmt::format("expected a table, found {}; [{}] holds named tables only: [{}.NAME]",
                       found(*node), child.parent->path, child.parent->path);
  else
    text = fmt::format("expected a table, found {}", found(*node));
  problem(node->at, child.path, text);
}

void Binder::move(Section& from, std::string_view name, std::string_view to) {
  Node* node = from.node ? from.node->find(name) : nullptr;
  if (!node) return;
  node->known = true;
  problem(node->at, key_in(from, name), fmt::format("has moved: write {}", to));
  const std::vector<std::string> parts = split_key(to);
  Node* table = root_.node;
  for (size_t i = 0; i + 1 < parts.size() && table; ++i) table = table->find(parts[i]);
  if (!table || !table->is_table()) return;
  Node copy = *node;
  copy.known = false;
  table->entries.try_emplace(parts.back(), std::move(copy));
}

bool Binder::count_element(const Section& container) {
  if (++elements_ <= max_elements) return true;
  if (elements_ == max_elements + 1)
    problem(container.where(), container.path,
            fmt::format("more than {} tables in lists and named tables", max_elements));
  return false;
}

void Binder::with_kind(const std::string& key, const std::string& kind,
                       const std::function<void()>& bind) {
  kinds_.push_back({key, kind});
  bind();
  kinds_.pop_back();
}

void Binder::problem(Location at, const std::string& key, const std::string& text) {
  if (reading()) report_->add(at, key, text);
}

void Binder::expect_new_name(const Section& section, const Row& row) const {
  CHECK(!row.name.empty() && toml_key(row.name) == row.name, "key name {} in [{}]",
        quoted(row.name), section.path);
  for (const auto& other : section.rows) {
    bool both_in_kinds = !kinds_.empty() && !other->kinds.empty();
    if (both_in_kinds && (other->kind_key != kinds_.back().key ||
                          std::find(other->kinds.begin(), other->kinds.end(), kinds_.back().name) ==
                              other->kinds.end()))
      continue;  // belongs to another kind
    if (both_in_kinds && !reading() && other->type == row.type)
      continue;  // a table of several kinds, whose own kinds are described again
    for (const std::string& name : names_of(row))
      for (const std::string& taken : names_of(*other))
        CHECK(name != taken, "two rows for key {}", key_in(section, name));
  }
}

bool Binder::commit(std::unique_ptr<Row> row) {
  Row& r = *row;
  if (!reading()) {
    add_to_schema(std::move(row));
    return true;
  }
  Section& section = *r.section;
  section.rows.push_back(std::move(row));
  bool valid = read(r);
  r.store = nullptr;  // refers to a member that may move
  if (valid && r.check)
    checks_.push_back(&r);
  else
    r.check = nullptr;
  return valid;
}

void Binder::add_to_schema(std::unique_ptr<Row> row) {
  row->store = nullptr;
  row->check = nullptr;
  if (!row->required)
    for (const ValueProblem& p : validate(*row, row->value))
      defects_.push_back(fmt::format("the default of {}{}: {}", row->key(), p.suffix, p.text));
  if (!kinds_.empty()) {
    row->kind_key = kinds_.back().key;
    row->kinds = {kinds_.back().name};
    for (auto& other : row->section->rows)
      if (other->name == row->name && other->kind_key == row->kind_key &&
          same_shape(*other, *row)) {
        if (std::find(other->kinds.begin(), other->kinds.end(), kinds_.back().name) ==
            other->kinds.end())
          other->kinds.push_back(kinds_.back().name);
        return;
      }
  }
  row->section->rows.push_back(std::move(row));
}

bool Binder::read(Row& row) {
  if (row.type == Type::duration) return read_duration(row);
  Node* node = row.section->node ? row.section->node->find(row.name) : nullptr;
  if (node) return read_value(row, *node, row.key(), row.value);
  if (row.required && !row.section->from_program) {
    report_missing(row);
    return false;
  }
  check_default(row);
  return true;
}

bool Binder::read_duration(Row& row) {
  struct Given {
    Duration::Unit unit;
    std::string name;
    Node* node;
  };
  std::vector<Given> given;
  bool refused = false;
  int origin = 0;
  if (Node* table = row.section->node) {
    for (const Spelling& s : duration_spellings)
      if (Node* node = table->find(row.name + s.suffix)) {
        node->known = true;
        given.push_back({s.unit, row.name + s.suffix, node});
        origin = std::max(origin, node->at.origin);
      }
    if (Node* percent = table->find(row.name + "_percent")) {
      percent->known = true;
      refused = true;
      problem(percent->at, row.key() + "_percent",
              fmt::format("write {}_fraction, a fraction of the run in 0..1 (10 percent is 0.1)",
                          row.name));
    }
  }
  if (row.no_fraction)
    for (const Given& g : given)
      if (g.unit == Duration::Unit::fraction) {
        refused = true;
        problem(g.node->at, key_in(*row.section, g.name),
                fmt::format("cannot be a fraction of the run; write one of {}",
                            base::join(spellings(row), ", ")));
      }
  if (row.no_fraction)
    std::erase_if(given, [](const Given& g) { return g.unit == Duration::Unit::fraction; });
  // An override replaces the value that the deck or an earlier override gives in another spelling.
  std::erase_if(given, [origin](const Given& g) { return g.node->at.origin < origin; });
  if (given.empty()) {
    bool missing = row.required && !row.section->from_program;
    if (missing && !refused) report_missing(row);
    if (!missing) check_default(row);
    return !missing && !refused;
  }
  std::stable_sort(given.begin(), given.end(), [](const Given& a, const Given& b) {
    return a.node->at.line < b.node->at.line;
  });
  std::string line = origin == 0 ? fmt::format(" (line {})", given[0].node->at.line) : "";
  for (size_t i = 1; i < given.size(); ++i)
    problem(given[i].node->at, key_in(*row.section, given[i].name),
            fmt::format("conflicts with {}{}; give only one of {}", given[0].name, line,
                        base::join(spellings(row), ", ")));
  Duration length{given[0].unit, 0};
  return read_value(row, *given[0].node, key_in(*row.section, given[0].name), length) &&
         given.size() == 1;
}

bool Binder::read_value(Row& row, Node& node, const std::string& key, Value value) {
  node.known = true;
  row.node = &node;
  std::vector<ValueProblem> problems = convert(node, row, value);
  if (problems.empty()) problems = validate(row, value);
  for (const ValueProblem& p : problems) problem(node.at, key + p.suffix, p.text);
  if (!problems.empty()) return false;
  row.store(value);
  row.value = std::move(value);
  return true;
}

// A default may be derived from the value of another key.
void Binder::check_default(Row& row) {
  for (const ValueProblem& p : validate(row, row.value))
    problem(row.section->where(), row.key() + p.suffix,
            fmt::format("the default does not fit here: {}", p.text));
}

void Binder::report_missing(const Row& row) {
  const Section& section = *row.section;
  if (section.mute_missing) return;
  if (row.type == Type::duration) {
    problem(section.where(), row.key(),
            fmt::format("missing; add exactly one of {} to {}: {}",
                        base::join(spellings(row), ", "), place(section), row.doc));
    return;
  }
  std::string range = row.choices.empty() ? range_text(row)
                                          : fmt::format("one of {}", base::join(row.choices, ", "));
  problem(section.where(), row.key(),
          fmt::format("missing; add {} = ... ({}{}{}{}{}) to {}: {}", row.name, type_name(row),
                      range.empty() ? "" : ", ", range, row.unit.empty() ? "" : " ", row.unit,
                      place(section), row.doc));
}

}  // namespace config
