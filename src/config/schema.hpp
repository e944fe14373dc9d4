// SPDX-License-Identifier: Apache-2.0
// The description of one key (Row) and of one table (Section). The engine builds a tree of sections
// twice, from the bind functions alone (the schema) and from a deck. In the schema, NAME means any
// name, a list has one element, and all kinds are present. Private to this folder.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/all.hpp"
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

// int and int64_t are both stored as int64_t.
using Value =
    std::variant<bool, int64_t, double, std::string, std::vector<std::string>, std::vector<int64_t>,
                 std::vector<double>, std::map<std::string, std::string>,
                 std::map<std::string, double>, Duration>;

struct Section;

// One key of a table. It has many members because each property that code can declare for a key
// (table.hpp) has one.
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

  // The key that picks between variants ("kind"); empty if every variant has this row.
  std::string kind_key;
  std::vector<std::string> kinds;  // the variants that have this row

  const Node* node = nullptr;  // the deck's value; null if the deck does not set the key
  std::string key() const;     // train.global_batch
  bool has_name(std::string_view text) const;  // also for the spellings of a duration
};

// One table, of the schema or of a deck. It has many members because the schema and the deck share
// this type: the checks then walk through both trees in the same way.
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

  // Schema: the section with the rows of a table that contains tables like itself.
  const Section* same_as = nullptr;
  const Section* schema = nullptr;  // deck: the schema of this section
  Node* node = nullptr;             // deck: the table, null if the deck does not have it
  bool kind_unknown = false;        // deck: no valid kind, so keys of every kind pass
  // Deck: a default element that the deck does not mention; its required keys already have values.
  bool from_program = false;
  // Deck: keys may be missing only because of a problem that is already reported.
  bool mute_missing = false;

  Row* find_row(std::string_view row_name) const;  // by name; a duration also by its spellings
  Section* find_child(std::string_view child_name) const;
  Location where() const;  // the line of the table, or of the nearest parent that the deck has
};

// Returns the schema of a child; follows same_as. The container's only child describes every
// element and every named table.
const Section* schema_child(const Section* schema, std::string_view name);

// Returns the kinds of this table that have a key or table of this name, and the key that picks
// between them. Empty if no kind has the name.
std::vector<std::string> kinds_with(const Section* schema, std::string_view name,
                                    std::string& kind_key);

// Visits every section of the tree, parents first.
void for_each_section(const Section& root, const std::function<void(const Section&)>& visit);

// The word that a duration in steps may be, if its row has the word among its choices: until the
// input ends. Its value is then infinite.
inline constexpr const char* kInput = "input";
inline constexpr double kUntilInputEnds = std::numeric_limits<double>::infinity();
inline bool is_input(const Duration& d) {
  return d.unit == Duration::Unit::steps && d.value == kUntilInputEnds;
}

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
std::vector<std::string> spellings(const Row& duration);  // spellings that this row accepts
// Returns total for total_steps; empty if the name has no such suffix.
std::string_view without_suffix(std::string_view name);

// ---- row.cpp: values against rows

struct ValueProblem {
  std::string suffix;  // "[2]" or ".image" within the value, or empty
  std::string text;
};
// Reads the node as the row's type. `out` is valid if the result is empty.
std::vector<ValueProblem> convert(const Node& node, const Row& row, Value& out);
// Checks the range and the choices.
std::vector<ValueProblem> validate(const Row& row, const Value& value);
std::string type_name(const Row& row);        // "an integer"
std::string short_type_name(const Row& row);  // "integer"
std::string range_text(const Row& row);       // ">= 1", "0..1", "a | b"; empty if unlimited

}  // namespace config
