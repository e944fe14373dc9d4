// SPDX-License-Identifier: Apache-2.0
#include "config/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/error.hpp"
#include "config/binder.hpp"
#include "config/write.hpp"

namespace config {
namespace {

template <class T>
std::unique_ptr<Row> row_of(Section& section, Type type, std::string_view name, T& member,
                            std::string_view doc) {
  using Stored = std::conditional_t<std::is_same_v<T, int>, int64_t, T>;
  auto row = std::make_unique<Row>();
  row->section = &section;
  row->type = type;
  row->name = name;
  row->doc = doc;
  row->value = Stored(member);
  row->store = [&member](const Value& value) { member = static_cast<T>(std::get<Stored>(value)); };
  return row;
}

bool takes_bounds(Type type) {
  return type != Type::boolean && type != Type::string && type != Type::strings &&
         type != Type::string_map;
}
bool takes_choices(Type type) {
  return type == Type::string || type == Type::strings || type == Type::string_map;
}

bool is_table_name(std::string_view name) {
  return !name.empty() && name.size() <= 100 &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; });
}

}  // namespace

// ---- Key

Key::Key(Binder& binder, std::unique_ptr<Row> row) : binder_(binder), row_(std::move(row)) {}
Key::~Key() { binder_.commit(std::move(row_)); }

Key& Key::required() {
  row_->required = true;
  return *this;
}
Key& Key::min(double least) {
  CHECK(takes_bounds(row_->type), "{} takes no bounds", row_->key());
  row_->least = least;
  return *this;
}
Key& Key::max(double most) {
  CHECK(takes_bounds(row_->type), "{} takes no bounds", row_->key());
  row_->most = most;
  return *this;
}
Key& Key::above(double bound) {
  CHECK(takes_bounds(row_->type), "{} takes no bounds", row_->key());
  row_->above = bound;
  return *this;
}
Key& Key::one_of(std::vector<std::string> names) {
  const bool word = (row_->type == Type::duration && names == std::vector<std::string>{kInput}) ||
                    (row_->type == Type::integers && names == std::vector<std::string>{kAll});
  CHECK(word || takes_choices(row_->type), "{} takes no names", row_->key());
  row_->choices = std::move(names);
  return *this;
}
Key& Key::no_fraction() {
  CHECK(row_->type == Type::duration, "{} is not a duration", row_->key());
  row_->no_fraction = true;
  return *this;
}
Key& Key::unit(std::string_view unit) {
  row_->unit = unit;
  return *this;
}
Key& Key::on_resume(OnResume what) {
  row_->on_resume = what;
  return *this;
}
Key& Key::check(std::function<std::string()> problem) {
  row_->check = std::move(problem);
  return *this;
}

// ---- Table

Table::Table(Binder& binder, Section& section)
    : binder_(binder), section_(section), path_(section.path) {}

Key Table::make_row(std::unique_ptr<Row> row) {
  binder_.expect_new_name(section_, *row);
  return Key(binder_, std::move(row));
}

Key Table::key(std::string_view name, bool& member, std::string_view doc) {
  return make_row(row_of(section_, Type::boolean, name, member, doc));
}
Key Table::key(std::string_view name, int& member, std::string_view doc) {
  return make_row(row_of(section_, Type::int32, name, member, doc));
}
Key Table::key(std::string_view name, int64_t& member, std::string_view doc) {
  return make_row(row_of(section_, Type::int64, name, member, doc));
}
Key Table::key(std::string_view name, double& member, std::string_view doc) {
  return make_row(row_of(section_, Type::real, name, member, doc));
}
Key Table::key(std::string_view name, std::string& member, std::string_view doc) {
  return make_row(row_of(section_, Type::string, name, member, doc));
}
Key Table::key(std::string_view name, std::vector<std::string>& member, std::string_view doc) {
  return make_row(row_of(section_, Type::strings, name, member, doc));
}
Key Table::key(std::string_view name, std::vector<int64_t>& member, std::string_view doc) {
  return make_row(row_of(section_, Type::integers, name, member, doc));
}
Key Table::key(std::string_view name, std::vector<double>& member, std::string_view doc) {
  return make_row(row_of(section_, Type::reals, name, member, doc));
}
Key Table::key(std::string_view name, std::map<std::string, std::string>& member,
               std::string_view doc) {
  return make_row(row_of(section_, Type::string_map, name, member, doc));
}
Key Table::key(std::string_view name, std::map<std::string, double>& member, std::string_view doc) {
  return make_row(row_of(section_, Type::real_map, name, member, doc));
}
Key Table::duration(std::string_view name, Duration& member, std::string_view doc) {
  return make_row(row_of(section_, Type::duration, name, member, doc));
}

Key Table::named_value(std::string_view name, const Names& names,
                       std::function<void(const std::string&)> store, std::string_view doc) {
  std::string now = names.now.value_or("");
  auto row = row_of(section_, Type::string, name, now, doc);
  CHECK(names.now, "{}: the default has no name", row->key());
  row->choices = names.all;
  row->store = [store = std::move(store)](const Value& value) {
    store(std::get<std::string>(value));
  };
  return make_row(std::move(row));
}

void Table::moved(std::string_view name, std::string_view to) { binder_.move(section_, name, to); }

void Table::kind(std::string_view name, std::string& member, std::shared_ptr<Variant>& options,
                 std::vector<std::string> names,
                 std::function<std::shared_ptr<Variant>(const std::string&)> make,
                 std::string_view doc) {
  auto row = row_of(section_, Type::string, name, member, doc);
  row->choices = names;
  row->required = member.empty();
  binder_.expect_new_name(section_, *row);
  bool valid = binder_.commit(std::move(row));
  if (!binder_.reading()) {
    for (const std::string& kind : names)
      binder_.with_kind(std::string(name), kind, [&] {
        if (std::shared_ptr<Variant> described = make(kind)) described->bind(*this);
      });
    return;
  }
  // Without a valid kind the right keys are unknown. After a syntax error, an absent kind may be
  // one that was left out, so the default does not count either.
  if (!valid || (section_.mute_missing && !has(name))) {
    section_.kind_unknown = true;
    return;
  }
  options = make(member);
  if (options) options->bind(*this);
}

void Table::child(std::string_view name, std::string_view doc, const void* tag,
                  const std::function<void(Table&)>& bind) {
  Section& section = binder_.child(section_, std::string(name), Section::Form::table, doc);
  if (binder_.reading()) binder_.attach(section);
  binder_.bind(section, tag, bind);
}

void Table::named_children(std::string_view name, std::string_view doc, const void* tag,
                           const NamedMember& member) {
  Section& container = binder_.child(section_, std::string(name), Section::Form::named, doc);
  if (!binder_.reading()) {
    binder_.bind(binder_.child(container, "NAME", Section::Form::table, doc), tag, member.describe);
    return;
  }
  binder_.attach(container);
  std::vector<std::string> names = member.names;
  if (container.node)
    for (auto& [entry, node] : container.node->entries) {
      if (is_table_name(entry)) {
        names.push_back(entry);
        continue;
      }
      node.known = true;
      binder_.problem(node.at, fmt::format("{}.{}", container.path, printable(toml_key(entry))),
                      "a name here has at most 100 letters, digits, _ and -");
    }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  for (const std::string& entry : names) {
    if (!binder_.count_element(container)) break;
    Section& section = binder_.child(container, entry, Section::Form::table, doc);
    binder_.attach(section);
    section.from_program = section.from_program || !container.node || !container.node->find(entry);
    binder_.bind(section, tag, [&](Table& t) { member.bind(entry, t); });
  }
}

void Table::child_list(std::string_view name, std::string_view doc, const void* tag,
                       const ListMember& member) {
  Section& container = binder_.child(section_, std::string(name), Section::Form::list, doc);
  if (!binder_.reading()) {
    binder_.bind(binder_.child(container, "[]", Section::Form::table, doc), tag, member.describe);
    return;
  }
  binder_.attach(container);
  size_t count = member.count;
  if (container.node) {
    count = 0;
    while (count < container.node->items.size() && binder_.count_element(container)) ++count;
    member.resize(count);
  }
  for (size_t i = 0; i < count; ++i) {
    Section& section = binder_.child(container, fmt::format("[{}]", i), Section::Form::table, doc);
    if (container.node)
      binder_.attach(section, &container.node->items[i]);
    else
      section.from_program = true;
    binder_.bind(section, tag, [&](Table& t) { member.bind(i, t); });
  }
}

bool Table::describing() const { return !binder_.reading(); }

bool Table::has(std::string_view name) const {
  if (!section_.node) return false;
  if (section_.node->find(name)) return true;
  std::vector<std::string> lengths = spellings(name);
  return std::any_of(lengths.begin(), lengths.end(),
                     [this](const std::string& s) { return section_.node->find(s); });
}

void Table::error(std::string_view name, std::string message) {
  if (!binder_.reading()) return;
  Location at = section_.where();
  Node* table = section_.node;
  std::string_view last = name;
  for (size_t dot; table && (dot = last.find('.')) != last.npos; last = last.substr(dot + 1)) {
    table = table->find(last.substr(0, dot));
    if (table) at = table->at;
  }
  std::vector<std::string> names = spellings(last);
  names.emplace_back(last);
  for (const std::string& n : names)
    if (Node* node = table ? table->find(n) : nullptr) {
      node->known = true;
      at = node->at;
    }
  std::string key = fmt::format("{}{}{}", path_, path_.empty() || name.empty() ? "" : ".", name);
  binder_.problem(at, key, message);
}

}  // namespace config
