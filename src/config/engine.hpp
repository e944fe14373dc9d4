// SPDX-License-Identifier: Apache-2.0
// Runs the bind functions: once to learn the schema, once more to read a deck. Private to this
// folder.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "config/report.hpp"
#include "config/schema.hpp"

namespace config {

class Engine {
 public:
  // Describes: no deck, all kinds, one element per list. Neither fills members nor reports
  // problems.
  Engine();
  // Reads a deck. `complete` is false if parts were left out after syntax errors: then nothing is
  // reported as missing.
  Engine(Node& deck, const Section& schema, Report& report, bool complete);

  // Throws Exit::internal where the rows contradict each other: a defect of ours, not of the deck.
  void bind_root(const std::function<void(Table&)>& bind);
  const Section& root() const { return root_; }
  Section& root() { return root_; }

  // ---- for Table and Key
  bool reading() const { return report_ != nullptr; }
  void expect_new_name(const Section& section, const Row& row) const;
  // Takes a finished row: reads its value from the deck, or adds it to the schema. False if the
  // deck's value has a problem.
  bool commit(std::unique_ptr<Row> row);
  // The child of that name, made if new.
  Section& child(Section& parent, const std::string& name, Section::Form form,
                 std::string_view doc);
  // Binds a child table. `tag` identifies the type that binds it.
  void bind(Section& section, const void* tag, const std::function<void(Table&)>& bind);
  // Gives the child its table of the deck; reports a value of another type.
  void attach(Section& child);
  void attach(Section& child, Node* node);
  // The deck's value of a key that has moved: reported, and read at its new place unless the deck
  // has it there, too.
  void move(Section& from, std::string_view name, std::string_view to);
  // Describes what the function binds as belonging to one kind.
  void with_kind(const std::string& key, const std::string& kind,
                 const std::function<void()>& bind);
  void problem(Location at, const std::string& key, const std::string& text);
  // Counts the elements of lists and named tables, which are the deck's to choose; false if there
  // are too many.
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
  std::vector<Row*> checks_;          // rows whose check waits for the end of its table
  std::vector<std::string> defects_;  // contradictions found where nothing may throw
  size_t elements_ = 0;
};

}  // namespace config
