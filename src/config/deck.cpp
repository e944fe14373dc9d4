// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/text.hpp"
#include "config/binder.hpp"
#include "config/dump.hpp"
#include "config/leftovers.hpp"
#include "config/overrides.hpp"
#include "config/table.hpp"
#include "config/toml.hpp"
#include "config/unknown.hpp"
#include "config/write.hpp"

namespace config {
namespace {

struct Place {
  const Section* section = nullptr;  // the innermost known table on the path
  const Row* row = nullptr;
  std::string name;  // name of the key within the section
};

Place find_place(const Section& root, std::string_view key) {
  Place place{&root, nullptr, {}};
  for (const std::string& part : split_key(key)) {
    bool list = place.section->form == Section::Form::list;
    const Section* child = place.section->find_child(list ? fmt::format("[{}]", part) : part);
    if (!child) {
      place.row = place.section->find_row(part);
      place.name = part;
      break;
    }
    place.section = child;
  }
  return place;
}

}  // namespace

struct Deck::Impl {
  explicit Impl(DeckSource s)
      : source(std::move(s)), report(source.path, source.overrides, source.removals) {}

  DeckSource source;
  Report report;
  Binder schema;
  Node tree;
  std::unique_ptr<Binder> binder;  // null if syntax errors left nothing to read
  bool complete = true;            // no syntax errors
};

Deck::Deck(DeckSource source, std::function<void(Table&)> bind)
    : impl_(std::make_unique<Impl>(std::move(source))) {
  Impl& d = *impl_;
  d.schema.bind_root(bind);
  ParsedToml parsed = parse_toml(d.source.text);
  for (const SyntaxProblem& p : parsed.problems) d.report.add({0, p.line}, "syntax", p.text);
  d.complete = parsed.problems.empty();
  d.tree = std::move(parsed.root);
  if (parsed.unusable) return;
  remove_keys(d.source.removals, d.tree, d.report, d.complete);
  apply_overrides(d.source.overrides, d.schema.root(), d.tree, d.report);
  d.binder = std::make_unique<Binder>(d.tree, d.schema.root(), d.report, d.complete);
  d.binder->bind_root(bind);
  report_unknown(d.binder->root(), d.schema.root(), d.report, d.complete);
  if (d.complete) report_leftovers(d.binder->root(), d.report);
}

Deck::~Deck() = default;

void Deck::error(std::string_view key, std::string message, std::string_view conflicts_with) {
  // If parts of the deck were left out, members hold defaults that the user never meant.
  if (!impl_->complete) return;
  Place place = find_place(impl_->binder->root(), key);
  std::string shown(key);
  if (place.row && place.row->type == Type::duration && place.name == place.row->name) {
    const auto& value = std::get<Duration>(place.row->value);
    if (value.set()) shown += duration_key("", value);  // the spelling of the deck
  }
  if (overridden(conflicts_with) && !overridden(key))
    return error(conflicts_with, fmt::format("{}: {}", shown, message));
  Location at = place.section->where();
  if (place.row && place.row->node)
    at = place.row->node->at;
  else if (const Node* node = place.section->node ? place.section->node->find(place.name) : nullptr)
    at = node->at;
  impl_->report.add(at, shown, message);
}

bool Deck::has(std::string_view key) const {
  if (!impl_->binder) return false;
  Place place = find_place(impl_->binder->root(), key);
  if (place.name.empty()) return place.section->node != nullptr;
  if (!place.row || !place.row->node) return false;
  bool spelled = place.row->name != place.name;
  return !spelled || place.section->node->find(place.name) == place.row->node;
}

bool Deck::overridden(std::string_view key) const {
  if (!impl_->binder) return false;
  const Row* row = find_place(impl_->binder->root(), key).row;
  return row && row->node && row->node->at.origin > 0;
}

const Problems& Deck::problems() const { return impl_->report.problems(); }

void Deck::throw_if_any() const {
  if (problems().any()) throw base::Error(base::Exit::config, base::join(problems().lines, "\n"));
}

std::string Deck::resolved() const {
  return impl_->binder ? write_resolved(impl_->binder->root()) : "";
}

std::map<std::string, std::string> Deck::flat() const {
  return impl_->binder ? write_flat(impl_->binder->root()) : std::map<std::string, std::string>();
}

std::optional<OnResume> Deck::on_resume(std::string_view key) const {
  if (!impl_->binder) return {};
  Place place = find_place(impl_->binder->root(), key);
  if (!place.row) return {};
  return place.row->on_resume;
}

std::string Deck::digest() const {
  std::string bytes = impl_->source.text;
  for (const std::string& text : impl_->source.overrides) bytes.append(1, '\0').append(text);
  for (const std::string& key : impl_->source.removals) bytes.append("\0-", 2).append(key);
  return base::sha256_hex(bytes);
}

DeckSource read_deck(const std::string& path, std::vector<std::string> overrides,
                     std::vector<std::string> removals) {
  constexpr size_t most = size_t{4} << 20;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) base::fail(base::Exit::config, "cannot read deck {}: {}", path, std::strerror(errno));
  DeckSource source{path, std::string(most + 1, '\0'), std::move(overrides), std::move(removals)};
  errno = 0;
  source.text.resize(std::fread(source.text.data(), 1, source.text.size(), file.get()));
  if (std::ferror(file.get()))
    base::fail(base::Exit::config, "cannot read deck {}: {}", path, std::strerror(errno));
  using namespace std::string_view_literals;
  if (source.text.starts_with("\xFF\xFE"sv) || source.text.starts_with("\xFE\xFF"sv))
    base::fail(base::Exit::config, "deck {} is UTF-16 text: save it as UTF-8", path);
  if (source.text.size() > most)
    base::fail(base::Exit::config,
               "deck {} has more than {} MiB, the limit for a deck: is it the right file?", path,
               most >> 20);
  return source;
}

}  // namespace config
