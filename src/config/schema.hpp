// SPDX-License-Identifier: Apache-2.0
// What is known of one key (Row) and of one table (Section). The engine builds a tree of sections
// twice: from the bind functions alone (the schema: names stand for any NAME, lists have one
// element, all kinds are there), and from a deck. Private to this folder.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/node.hpp"
#include "config/table.hpp"

namespace config {

enum class Type {
  boolean,
  int32,
  int64,
  real,
  string,
  strings,
  integers,
  reals,
  string_map,
  real_map,
  duration
};

// int and int64_t share int64_t.
using Value =
    std::variant<bool, int64_t, double, std::string, std::vector<std::string>, std::vector<int64_t>,
                 std::vector<double>, std::map<std::string, std::string>,
                 std::map<std::string, double>, Duration>;

struct Section;

struct Row {
  Section* section = nullptr;
  std::string name;
  Type type = Type::boolean;
  std::string doc;
  Value value;  // the default until the deck sets it

  bool required = false;
  bool no_fraction = false;  // a duration that cannot be a fraction of the run
  OnResume on_resume = OnResume::ask;
  std::optional<double> least, most, above;
  std::vector<std::string> choices;
  std::string unit;
  std::function<std::string()> check;
  std::function<void(const Value&)> store;

  // the key that picks between variants ("kind"), if the row belongs to variants
  std::string kind_key;
  std::vector<std::string> kinds;  // those variants

  const Node* node = nullptr;                  // where the deck sets it
  std::string key() const;                     // train.global_batch
  bool has_name(std::string_view text) const;  // also for the spellings of a duration
};

struct Section {
  enum class Form {
    table,
    named,  // holds any number of named tables
    list,   // holds the elements of an array of tables
  };

  Section* parent = nullptr;
  Form form = Form::table;
  std::string name;  // within the parent; "[0]" for an element
  std::string path;  // model.encoder, data.NAME, optimizer.rule[0]
  std::string doc;
  std::vector<std::unique_ptr<Row>> rows;
  std::vector<std::unique_ptr<Section>> children;
  std::string kind_key;
  std::vector<std::string> kinds;

  // schema: a table that contains tables like itself; its rows are there
  const Section* same_as = nullptr;
  const Section* schema = nullptr;  // deck: the section of the schema that describes this one
  Node* node = nullptr;             // deck: the table, null if the deck does not have it
  bool kind_unknown = false;        // deck: no valid kind, so keys of every kind pass
  // deck: a default element the deck leaves alone; its required keys have their values
  bool from_program = false;
  // deck: what is absent here may be a consequence of a problem reported already
  bool mute_missing = false;

  Row* find_row(std::string_view row_name) const;  // by name; a duration also by its spellings
  Section* find_child(std::string_view child_name) const;
  Location where() const;  // of the table, or of the nearest one above it that the deck has
};

// The schema section of a child; follows same_as; an element or named table is described by its
// container's only child.
const Section* schema_child(const Section* schema, std::string_view name);

// The kinds of this table that have a key or table of this name, and the key that picks between
// them; empty if none has.
std::vector<std::string> kinds_with(const Section* schema, std::string_view name,
                                    std::string& kind_key);

// Every section of the tree, parents first.
void for_each_section(const Section& root, const std::function<void(const Section&)>& visit);

// The four spellings of a duration.
struct Spelling {
  Duration::Unit unit;
  const char* suffix;
};
inline constexpr Spelling duration_spellings[] = {{Duration::Unit::steps, "_steps"},
                                                  {Duration::Unit::examples, "_examples"},
                                                  {Duration::Unit::epochs, "_epochs"},
                                                  {Duration::Unit::fraction, "_fraction"}};
std::vector<std::string> spellings(std::string_view duration_name);
std::vector<std::string> spellings(const Row& duration);  // those it may have
// total_steps -> total; empty if the name has no such suffix.
std::string_view without_suffix(std::string_view name);

// ---- row.cpp: values against rows

struct ValueProblem {
  std::string suffix;  // "[2]" or ".image" within the value, or empty
  std::string text;
};
// Reads the node as the row's type. Empty result: `out` is valid.
std::vector<ValueProblem> convert(const Node& node, const Row& row, Value& out);
// Range and choices.
std::vector<ValueProblem> validate(const Row& row, const Value& value);
std::string type_name(const Row& row);        // "an integer"
std::string short_type_name(const Row& row);  // "integer"
std::string range_text(const Row& row);       // ">= 1", "0..1", "a | b"; empty if unlimited

}  // namespace config
