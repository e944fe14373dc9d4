// SPDX-License-Identifier: Apache-2.0
// Lists of named rows. Each row is a thing that a deck or the command line may name; it has a
// `name`.
//
//   #define METHODS(ROW) ROW(adafactor) ROW(adamw)
//   REGISTRY(methods, MethodRow, "optimizer", METHODS)  // src/optim/NAME.cpp defines NAME_row()
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"

namespace base {

template <class Row>
class Registry {
 public:
  // `what` names the kind of row in messages.
  Registry(const char* what, std::vector<Row> rows) : what_(what), rows_(std::move(rows)) {}

  auto begin() const { return rows_.begin(); }
  auto end() const { return rows_.end(); }
  size_t size() const { return rows_.size(); }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const Row& row : rows_) out.push_back(row.name);
    return out;
  }

  // Returns null if no row has the name.
  const Row* find(std::string_view name) const {
    for (const Row& row : rows_)
      if (row.name == name) return &row;
    return nullptr;
  }
  // Throws Error(Exit::config) if no row has the name.
  const Row& at(std::string_view name) const {
    if (const Row* row = find(name)) return *row;
    fail(Exit::config, "there is no {} {}{}", what_, quoted(name), way_out(name));
  }
  // Returns ", nearest is 'resize'; known: a, b" for messages about a name without a row.
  std::string way_out(std::string_view name) const {
    const std::vector<std::string> known = names();
    const std::string nearest = nearest_name(name, known);
    return fmt::format("{}; known: {}",
                       nearest.empty() ? "" : fmt::format(", nearest is '{}'", nearest),
                       join(known, ", "));
  }

 private:
  const char* what_;
  std::vector<Row> rows_;
};

}  // namespace base

// Defines `function`, which returns the registry of ROWS. NAME_row() in the row's own file makes
// each row.
#define REGISTRY(function, Row, what, ROWS)                               \
  const base::Registry<Row>& function() {                                 \
    using RegistryRow = Row;                                              \
    static const base::Registry<Row> rows(what, {ROWS(REGISTRY_ROW_OF)}); \
    return rows;                                                          \
  }
#define REGISTRY_ROW_OF(name)        \
  [] {                               \
    extern RegistryRow name##_row(); \
    return name##_row();             \
  }(),
