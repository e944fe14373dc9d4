// SPDX-License-Identifier: Apache-2.0
// The configuration engine. One row per key holds name, type, default, range, unit, doc line and
// the rule for resuming, in one chain beside the member that it fills. The same `bind` function
// parses a deck, describes the keys and dumps the resolved deck. The rows live with their owners
// (`struct TrainOptions { ...; void bind(config::Table& t); }`). Only this folder includes TOML++.
//
//   struct TrainOptions {
//     std::string data;
//     config::Duration total;
//     int64_t global_batch = 0;
//     bool shuffled = true;
//     void bind(config::Table& t) {
//       t.key("data", data, "name of a [data.NAME] table").required();
//       t.duration("total", total, "length of the run").required();
//       t.key("global_batch", global_batch, "examples per update").required().min(1);
//       t.choice("shuffle", shuffled, {{"none", false}, {"exact", true}}, "order of examples");
//     }
//   };
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/names.hpp"
#include "base/registry.hpp"
#include "config/duration.hpp"

namespace config {

// Decides what happens when the deck of a resumed run has another value for the key.
enum class OnResume {
  ask,         // refused unless --allow-change KEY (the default)
  may_change,  // [R] in the decks: accepted and noted in the log
  never,       // another value would make the saved state meaningless
};

struct Row;      // one key as described above (schema.hpp)
struct Section;  // one table (schema.hpp)
class Binder;    // describes or parses (binder.hpp)

// Returned by Table::key, to chain constraints. The row takes effect at the end of the full
// expression.
class Key {
 public:
  Key& required();                              // no default; an absent key is an error
  Key& min(double least);                       // value >= least (for lists: every element)
  Key& max(double most);                        // value <= most
  Key& above(double bound);                     // value > bound
  Key& one_of(std::vector<std::string> names);  // strings: one of these; an error names the nearest
  Key& no_fraction();                           // durations: not *_fraction
  Key& unit(std::string_view unit);             // "s", "MiB", "examples", ...: shown by --describe
  Key& on_resume(OnResume what);
  // An extra check after parsing; returns "" or the problem.
  Key& check(std::function<std::string()> problem);
  Key(Key&&) = delete;
  ~Key();

 private:
  friend class Table;
  Key(Binder& binder, std::unique_ptr<Row> row);
  Binder& binder_;
  std::unique_ptr<Row> row_;
};

class Table {
 public:
  // Scalars and lists. The value of the member on entry is the default.
  Key key(std::string_view name, bool& member, std::string_view doc);
  Key key(std::string_view name, int& member, std::string_view doc);
  Key key(std::string_view name, int64_t& member, std::string_view doc);
  Key key(std::string_view name, double& member, std::string_view doc);  // accepts integers too
  Key key(std::string_view name, std::string& member, std::string_view doc);
  Key key(std::string_view name, std::vector<std::string>& member, std::string_view doc);
  Key key(std::string_view name, std::vector<int64_t>& member, std::string_view doc);
  Key key(std::string_view name, std::vector<double>& member, std::string_view doc);
  // A table of strings, { image = "png" }.
  Key key(std::string_view name, std::map<std::string, std::string>& member, std::string_view doc);
  // A table of numbers, { a = 1.0 }.
  Key key(std::string_view name, std::map<std::string, double>& member, std::string_view doc);

  // Binds an enum (or bool) whose values have names in the deck. --describe, dumps and comparisons
  // on resume show the names, as for a string key with one_of.
  //   t.choice("sums", sums, {{"f32", Sums::f32}, {"f64", Sums::f64}}, "type of sums");
  template <class E>
  Key choice(std::string_view name, E& member,
             std::initializer_list<std::pair<const char*, std::type_identity_t<E>>> values,
             std::string_view doc) {
    return choice(name, member, std::span(values.begin(), values.size()), doc);
  }
  // With a table that messages use too (base/names.hpp).
  template <class E>
  Key choice(std::string_view name, E& member,
             std::span<const std::pair<const char*, std::type_identity_t<E>>> values,
             std::string_view doc) {
    const std::vector<std::pair<std::string, E>> all(values.begin(), values.end());
    Names names;
    for (const auto& [text, value] : all) {
      names.all.push_back(text);
      if (value == member) names.now = text;
    }
    return named_value(
        name, names,
        [&member, all](const std::string& text) {
          for (const auto& one : all)
            if (one.first == text) member = one.second;
        },
        doc);
  }

  // Accepts exactly one (or, if not required, at most one) of NAME_steps | NAME_examples |
  // NAME_epochs | NAME_fraction. NAME_percent is refused with a hint to *_fraction.
  Key duration(std::string_view name, Duration& member, std::string_view doc);

  // Binds a table within the table: [model.encoder].
  template <class T>
  void table(std::string_view name, T& member, std::string_view doc) {
    child(name, doc, type_tag<T>(), [&member](Table& t) { member.bind(t); });
  }
  // Binds a table whose presence turns something on: the member has a value exactly if the deck has
  // the table.
  template <class T>
  void optional_table(std::string_view name, std::optional<T>& member, std::string_view doc) {
    if (!describing() && !has(name)) return;
    child(name, doc, type_tag<T>(), [this, &member](Table& t) {
      if (describing()) return bind_scratch<T>(t);
      member.emplace().bind(t);
    });
  }
  // Binds any number of named tables: [data.NAME]. Names are letters, digits, _ and -. Entries that
  // the map already has are defaults.
  template <class T>
  void named(std::string_view name, std::map<std::string, T>& member, std::string_view doc) {
    NamedMember access;
    access.bind = [&member](const std::string& key, Table& t) { member[key].bind(t); };
    for (const auto& entry : member) access.names.push_back(entry.first);
    access.describe = bind_scratch<T>;
    named_children(name, doc, type_tag<T>(), access);
  }
  // Binds an array of tables: [[optimizer.rule]]. A list in the deck replaces all elements that the
  // vector already has.
  template <class T>
  void list(std::string_view name, std::vector<T>& member, std::string_view doc) {
    ListMember access;
    access.bind = [&member](size_t i, Table& t) { member[i].bind(t); };
    access.resize = [&member](size_t count) {
      member.clear();
      member.resize(count);
    };
    access.count = member.size();
    access.describe = bind_scratch<T>;
    child_list(name, doc, type_tag<T>(), access);
  }

  // Binds a registered variant. `kind` picks one of `names`; `make(kind)` builds the options, whose
  // own bind adds further keys to this same table. Describing lists the keys of every kind, each
  // with the kinds that have it.
  //   t.kind("kind", kind, options, methods(), "which optimizer");
  struct Variant {
    virtual ~Variant() = default;
    virtual void bind(Table&) {}
  };
  void kind(std::string_view name, std::string& member, std::shared_ptr<Variant>& options,
            std::vector<std::string> names,
            std::function<std::shared_ptr<Variant>(const std::string&)> make, std::string_view doc);
  // Uses the names and options of a registry's rows.
  template <class R>
  void kind(std::string_view name, std::string& member, std::shared_ptr<Variant>& options,
            const base::Registry<R>& rows, std::string_view doc) {
    kind(
        name, member, options, rows.names(),
        [&rows](const std::string& k) { return rows.at(k).make_options(); }, doc);
  }

  // Declares a key that earlier versions had in this table and that is now `to` ("model.seed"), in
  // a table bound later. A deck that sets the old key gets an error that names the new place. The
  // value is still read there, so that the deck of an old checkpoint can be read.
  void moved(std::string_view name, std::string_view to);

  // True if the deck (or an override) sets the key of this table. For checks of several keys, when
  // parsing.
  bool has(std::string_view name) const;
  // Reports a problem with a key of this table at its file:line, together with all other problems.
  // Does nothing when not parsing. A key without a row is not also reported as unknown.
  // "decoder.heads" is a key of a table within this one.
  void error(std::string_view name, std::string message);
  // Returns the full path of this table, "model.encoder"; "" is the root.
  const std::string& path() const { return path_; }

 private:
  friend class Binder;
  struct Names {
    std::vector<std::string> all;
    std::optional<std::string> now;  // the member's value on entry
  };
  Key named_value(std::string_view name, const Names& names,
                  std::function<void(const std::string&)> store, std::string_view doc);
  struct NamedMember {
    std::function<void(const std::string&, Table&)> bind;
    std::vector<std::string> names;
    std::function<void(Table&)> describe;
  };
  struct ListMember {
    std::function<void(size_t, Table&)> bind;
    std::function<void(size_t)> resize;
    size_t count = 0;
    std::function<void(Table&)> describe;
  };
  // One address per type, so that a type that contains itself is described once.
  template <class T>
  static const void* type_tag() {
    static constexpr char tag = 0;
    return &tag;
  }
  template <class T>
  static void bind_scratch(Table& t) {
    T scratch{};
    scratch.bind(t);
  }
  Table(Binder& binder, Section& section);
  bool describing() const;  // true if no deck is being read
  Key make_row(std::unique_ptr<Row> row);
  void child(std::string_view name, std::string_view doc, const void* tag,
             const std::function<void(Table&)>& bind);
  void named_children(std::string_view name, std::string_view doc, const void* tag,
                      const NamedMember& member);
  void child_list(std::string_view name, std::string_view doc, const void* tag,
                  const ListMember& member);
  Binder& binder_;
  Section& section_;
  std::string path_;
};

// ---- the interface of main

struct DeckSource {
  std::string path;                    // file name, for messages
  std::string text;                    // bytes of the file
  std::vector<std::string> overrides;  // "a.b.c=value" of --set, in order
  // "a.b.c" of --unset: removed from the text before the overrides apply.
  std::vector<std::string> removals = {};
};
// Returns an override that sets `key` to this text, whatever characters it has.
std::string text_override(std::string_view key, std::string_view text);
// Throws Error(Exit::config) if the file cannot be read.
DeckSource read_deck(const std::string& path, std::vector<std::string> overrides,
                     std::vector<std::string> removals = {});

// All problems of a deck, each as "file:line: key: text" (overrides: "--set a.b=c: text").
struct Problems {
  std::vector<std::string> lines;
  bool any() const { return !lines.empty(); }
};

class Deck {
 public:
  // Parses the text and fills `root` through its bind. Collects every problem: syntax, unknown keys
  // with the nearest known name, types, ranges, missing keys. Throws nothing for a problem of the
  // deck.
  template <class T>
  Deck(DeckSource source, T& root) : Deck(std::move(source), [&root](Table& t) { root.bind(t); }) {}
  Deck(DeckSource source, std::function<void(Table&)> bind);
  ~Deck();

  // Adds a problem found by a cross-check, at the line of the key ("train.global_batch") if the
  // deck sets it. If --set has changed only the key `conflicts_with`, the problem is reported for
  // that override.
  void error(std::string_view key, std::string message, std::string_view conflicts_with = {});
  bool has(std::string_view key) const;
  bool overridden(std::string_view key) const;  // true if the value comes from --set
  const Problems& problems() const;
  void throw_if_any() const;  // throws Error(Exit::config) with all lines
  // Returns a TOML text of every key with its value, defaults included, and the doc lines as
  // comments.
  std::string resolved() const;
  std::string digest() const;  // sha256 (hex) of the deck's bytes, the removals and the overrides
  // Returns the value of every key, for comparing two decks on resume. A duration is one entry
  // without its suffix: train.total = "500 steps", or "unset".
  std::map<std::string, std::string> flat() const;
  // Returns the rule for a key of flat() (or for one spelling of a duration) whose value differs on
  // resume. Empty if this deck has no such key.
  std::optional<OnResume> on_resume(std::string_view key) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Implements --describe [key or prefix]: the reference of all keys of `root`. A name may also be a
// value that keys accept. For other names, returns the keys that share a word with the name, or
// throws Error(Exit::config) with the nearest name. Returns "" instead if `guess` is false.
std::string describe(std::function<void(Table&)> bind, std::string_view key, bool guess = true);

// Returns the known full key that was probably meant, or "" if none is near. The comparison goes
// part by part: optimizr.lr is near optimizer.learning_rate, optimizer.lr is not near optimizer.b1.
std::string nearest_key(std::string_view key, std::span<const std::string> known);

}  // namespace config
