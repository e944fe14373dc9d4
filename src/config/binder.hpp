// SPDX-License-Identifier: Apache-2.0
// Runs the bind functions, once to learn the schema and once to read a deck. Private to this
// folder.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "config/report.hpp"
#include "config/schema.hpp"

namespace config {

class Binder {
 public:
  // Describes all kinds and one element per list, without a deck. Fills no members and reports no
  // problems.
  Binder();
  // Reads a deck. `complete` is false if parts were left out after syntax errors; missing keys are
  // not reported then.
  Binder(Node& deck, const Section& schema, Report& report, bool complete);

  // Throws Exit::internal if the rows contradict each other, which is a defect of the program.
  void bind_root(const std::function<void(Table&)>& bind);
  const Section& root() const { return root_; }
  Section& root() { return root_; }

  // ---- for Table and Key
  bool reading() const { return report_ != nullptr; }
  void expect_new_name(const Section& section, const Row& row) const;
  // Reads the value of a finished row from the deck, or adds the row to the schema. Returns false
  // if the deck's value has a problem.
  bool commit(std::unique_ptr<Row> row);
  // Returns the child of that name and creates it if it is new.
  Section& child(Section& parent, const std::string& name, Section::Form form,
                 std::string_view doc);
  // Binds a child table. `tag` identifies the type that binds it.
  void bind(Section& section, const void* tag, const std::function<void(Table&)>& bind);
  // Connects the child to its table of the deck; reports a value that is not a table.
  void attach(Section& child);
  void attach(Section& child, Node* node);
  // Reports a moved key that the deck sets, and copies its value to the new place unless the deck
  // sets that, too.
  void move(Section& from, std::string_view name, std::string_view to);
  // Marks everything that the function binds as belonging to one kind.
  void with_kind(const std::string& key, const std::string& kind,
                 const std::function<void()>& bind);
  void problem(Location at, const std::string& key, const std::string& text);
  // Counts the elements of lists and named tables, whose number the deck chooses. Returns false if
  // there are too many.
  bool count_element(const Section& container);

 private:
  struct Open {
    const void* tag;
    const Section* section;
  };
  struct Kind {
    std::string key, name;
  };

  void run_bind(Section& section, const std::function<void(Table&)>& bind);
  void add_to_schema(std::unique_ptr<Row> row);
  bool read(Row& row);
  bool read_duration(Row& row);
  bool read_value(Row& row, Node& node, const std::string& key, Value value);
  void check_default(Row& row);
  void report_missing(const Row& row);

  Section root_;
  Report* report_ = nullptr;
  std::vector<Open> open_;            // types being bound, outermost first
  std::vector<Kind> kinds_;           // kinds being described
  std::vector<Row*> checks_;          // rows whose check waits for the end of their table
  std::vector<std::string> defects_;  // contradictions between rows, thrown when bind_root ends
  size_t elements_ = 0;
};

}  // namespace config
