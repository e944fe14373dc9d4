// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <functional>

#include "base/error.hpp"
#include "base/text.hpp"
#include "config/binder.hpp"
#include "config/dump.hpp"
#include "config/unknown.hpp"
#include "config/write.hpp"

namespace config {
namespace {

// A table to show, with some or all of its rows.
struct Block {
  const Section* section = nullptr;
  std::vector<const Row*> rows;
};

Block whole(const Section& section) {
  Block block{&section, {}};
  for (const auto& row : section.rows) block.rows.push_back(row.get());
  return block;
}

bool is_index(const std::string& part) { return part.find_first_not_of("0123456789") == part.npos; }

// Appends the blocks that parts i and later select below the section. data.train.path finds
// data.NAME.path. List elements may be written as rule[], rule[0], rule.0 or left out.
void select(const Section& section, const std::vector<std::string>& parts, size_t i,
            std::vector<Block>& out) {
  if (section.same_as) return select(*section.same_as, parts, i, out);
  if (i == parts.size()) {
    for_each_section(section, [&out](const Section& s) { out.push_back(whole(s)); });
    return;
  }
  if (section.form != Section::Form::table) {
    bool skip = section.form == Section::Form::list && !is_index(parts[i]);
    return select(*section.children.front(), parts, skip ? i : i + 1, out);
  }
  if (section.find_child(parts[i])) {  // of several kinds, perhaps in two forms
    for (const auto& child : section.children)
      if (child->name == parts[i]) select(*child, parts, i + 1, out);
    return;
  }
  const Row* row = section.find_row(parts[i]);
  bool within_map = row && (row->type == Type::string_map || row->type == Type::real_map);
  if (!row || (i + 1 < parts.size() && !within_map)) return;
  Block block{&section, {}};
  for (const auto& r : section.rows)  // several kinds may have a row of this name
    if (r->name == row->name) block.rows.push_back(r.get());
  out.push_back(block);
}

// Returns all rows that `wanted` accepts, grouped by table.
std::vector<Block> rows_where(const Section& schema,
                              const std::function<bool(const Row&)>& wanted) {
  std::vector<Block> out;
  for_each_section(schema, [&](const Section& section) {
    Block block{&section, {}};
    for (const auto& row : section.rows)
      if (wanted(*row)) block.rows.push_back(row.get());
    if (!block.rows.empty()) out.push_back(block);
  });
  return out;
}

// Returns the keys of this name in any table, the keys that accept the name as a value, and the
// keys of the kind of this name.
std::vector<Block> by_last_name(const Section& schema, const std::string& name) {
  auto has = [&](const std::vector<std::string>& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  return rows_where(schema, [&](const Row& row) {
    return row.has_name(name) || has(row.kinds) || has(row.choices);
  });
}

bool is_letter(char c) { return std::isalnum(static_cast<unsigned char>(c)); }

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words(1);
  for (char c : text) {
    if (is_letter(c))
      words.back() += char(std::tolower(static_cast<unsigned char>(c)));
    else if (!words.back().empty())
      words.emplace_back();
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

// True for batch and batches, clip and clipping. Words shorter than four letters must be equal.
bool alike(const std::string& a, const std::string& b) {
  constexpr size_t shortest_stem = 4;
  if (a == b) return true;
  return std::min(a.size(), b.size()) >= shortest_stem && (a.starts_with(b) || b.starts_with(a));
}

size_t shared_words(const std::vector<std::string>& words, const std::vector<std::string>& others) {
  return size_t(std::count_if(words.begin(), words.end(), [&](const std::string& word) {
    return std::any_of(others.begin(), others.end(),
                       [&](const std::string& other) { return alike(word, other); });
  }));
}

// Returns the keys whose names share the most words with the text. If no name shares a word,
// returns the keys whose doc lines contain all words.
std::vector<Block> by_words(const Section& schema, const std::string& text) {
  const std::vector<std::string> words = words_of(text);
  size_t most = 0;
  rows_where(schema, [&](const Row& row) {
    most = std::max(most, shared_words(words, words_of(row.name)));
    return false;
  });
  return rows_where(schema, [&](const Row& row) {
    if (most > 0) return shared_words(words, words_of(row.name)) == most;
    return !words.empty() && shared_words(words, words_of(row.doc)) == words.size();
  });
}

// Returns the known name that was probably meant: a full name, or the last part of one.
std::string nearest_known(const Section& schema, std::string_view key) {
  std::vector<std::string> names, last;
  auto add = [&](const std::string& name) {
    names.push_back(name);
    last.push_back(split_key(name).back());
  };
  for_each_section(schema, [&](const Section& section) {
    if (!section.path.empty()) names.push_back(section.path);
    for (const auto& row : section.rows) {
      add(row->key());
      if (row->type != Type::duration) continue;
      for (const std::string& s : spellings(row->key())) add(s);
    }
  });
  std::string near = nearest_key(key, names);
  if (near.empty()) near = nearest(key, names);
  return near.empty() ? nearest(key, last) : near;
}

[[noreturn]] void fail_unknown(const Section& schema, std::string_view key,
                               const std::string& near) {
  std::vector<std::string> tables;
  for (const auto& row : schema.rows) tables.push_back(row->name);
  for (const auto& child : schema.children) tables.push_back(child->name);
  base::fail(base::Exit::config, "--describe {}: unknown key; {}", printable(key),
             near.empty() ? fmt::format("known at the top: {}", base::join(tables, ", "))
                          : fmt::format("did you mean {}?", near));
}

struct Cells {
  std::string name, type, otherwise, range, rest;
};

Cells cells_of(const Row& row) {
  Cells c;
  c.name = row.key() + (row.type == Type::duration ? "_*" : "");
  c.type = short_type_name(row);
  c.otherwise = row.required ? "required" : printable(plain_value(row.value), 40);
  c.range = range_text(row);
  if (!row.unit.empty()) c.range += (c.range.empty() ? "" : " ") + row.unit;
  c.rest = (row.on_resume == OnResume::may_change ? "[R] " : "    ") + row.doc;
  if (row.on_resume == OnResume::never) c.rest += " (never changes on resume)";
  if (!row.kinds.empty())
    c.rest += fmt::format(" {{{}: {}}}", row.kind_key, base::join(row.kinds, ", "));
  return c;
}

std::string title(const Section& section) {
  if (section.path.empty()) return "top of the deck";
  if (!section.path.ends_with("[]")) return fmt::format("[{}]", section.path);
  return fmt::format("[[{}]]", section.path.substr(0, section.path.size() - 2));
}

void write_block(const Block& block, std::string& out) {
  const Section& section = *block.section;
  if (block.rows.empty() && !section.same_as) return;
  if (!out.empty()) out += '\n';
  out += fmt::format("{}{}{}\n", title(section), section.doc.empty() ? "" : "  ", section.doc);
  if (section.same_as) {
    out += fmt::format("  the keys of {} again\n", title(*section.same_as));
    return;
  }
  constexpr size_t widest = 32;  // a longer cell only pushes the rest of its own line
  std::vector<Cells> cells;
  size_t name = 0, type = 0, otherwise = 0, range = 0;
  for (const Row* row : block.rows) {
    const Cells& c = cells.emplace_back(cells_of(*row));
    name = std::max(name, std::min(c.name.size(), widest));
    type = std::max(type, c.type.size());
    otherwise = std::max(otherwise, std::min(c.otherwise.size(), widest));
    range = std::max(range, std::min(c.range.size(), widest));
  }
  for (const Cells& c : cells)
    out += fmt::format("  {:<{}}  {:<{}}  {:<{}}  {:<{}}  {}\n", c.name, name, c.type, type,
                       c.otherwise, otherwise, c.range, range, c.rest);
}

}  // namespace

std::string write_description(const Section& schema, std::string_view key, bool guess) {
  std::vector<Block> blocks;
  std::string out;
  if (base::trim(key).empty()) {
    select(schema, {}, 0, blocks);
  } else {
    std::vector<std::string> parts = split_key(base::trim(key));
    if (!parts.empty()) select(schema, parts, 0, blocks);
    if (blocks.empty() && parts.size() == 1) blocks = by_last_name(schema, parts[0]);
    if (blocks.empty() && !guess) return out;
    const std::string near = blocks.empty() ? nearest_known(schema, key) : "";
    if (blocks.empty() && near.empty() && !parts.empty()) {
      blocks = by_words(schema, parts.back());
      out = fmt::format("No key is called {}. Similar keys:\n", printable(key));
    }
    if (blocks.empty()) fail_unknown(schema, key, near);
  }
  for (const Block& block : blocks) write_block(block, out);
  return out;
}

std::string describe(std::function<void(Table&)> bind, std::string_view key, bool guess) {
  Binder binder;
  binder.bind_root(bind);
  return write_description(binder.root(), key, guess);
}

}  // namespace config
