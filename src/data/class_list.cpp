// SPDX-License-Identifier: Apache-2.0
#include "data/class_list.hpp"

#include <algorithm>
#include <unordered_map>

#include "base/error.hpp"
#include "base/text.hpp"
#include "data/ops/op.hpp"
#include "data/sources/class_folder.hpp"
#include "data/tokenizers/tokenizer.hpp"

namespace data {
namespace {

struct Place {
  std::string key;   // "data.val.preprocess"
  std::string from;  // file or folder of the list
};

// Follows the field back through the ops to the list that its numbers come from.
std::optional<Place> place_of_list(const Sections& sections, const std::string& name,
                                   std::string field) {
  const std::string text = sections.preprocess_of(name);
  const std::vector<Call> calls = parse_calls(text);
  for (auto call = calls.rbegin(); call != calls.rend(); ++call) {
    if (call->name != "class_number" && call->name != "copy") continue;
    const Arguments arguments(*call, op_rows().at(call->name).parameters, text);
    if (arguments.text("outkey") != field) continue;
    if (call->name == "copy") {
      field = arguments.text("inkey");
      continue;
    }
    if (!arguments.has("classes")) return {};
    return Place{fmt::format("data.{}.preprocess", name), arguments.text("classes")};
  }
  const DataOptions& options = sections.data.at(name);
  const auto* folder = dynamic_cast<const ClassFolderOptions*>(options.source_options());
  if (!folder || field != "label") return {};
  return Place{fmt::format("data.{}.{}", name, folder->classes.empty() ? "path" : "classes"),
               folder->names_from()};
}

// Returns a name trimmed, in lower case, and with spaces for _ and -. The name of a folder and a
// text about it can then be compared.
std::string plain_name(std::string_view name) {
  std::string out;
  for (const char c : base::trim(name)) out += c == '_' || c == '-' ? ' ' : c;
  return ascii_lower(std::move(out));
}

}  // namespace

std::optional<ClassList> class_list_of(const Sections& sections, const std::string& name,
                                       const std::string& field) {
  try {
    const std::optional<Place> place = place_of_list(sections, name, field);
    if (place) return ClassList{place->key, ClassNames(place->from)};
  } catch (const base::Error&) {
    // Opening the set reports the problem. A deck may be checked on a machine without its data.
  }
  return {};
}

int64_t first_difference(const std::vector<std::string>& one,
                         const std::vector<std::string>& other) {
  const auto end = one.begin() + int64_t(std::min(one.size(), other.size()));
  const auto [at, there] = std::mismatch(one.begin(), end, other.begin());
  return at == end ? -1 : at - one.begin();
}

int64_t first_moved(const std::vector<std::string>& one, const std::vector<std::string>& other) {
  std::unordered_map<std::string_view, size_t> numbers;
  for (size_t i = 0; i < one.size(); ++i) numbers.emplace(one[i], i);
  for (size_t i = 0; i < other.size(); ++i)
    if (const auto found = numbers.find(other[i]); found != numbers.end() && found->second != i)
      return int64_t(i);
  return -1;
}

int64_t text_of_another(const std::vector<std::string>& texts,
                        const std::vector<std::string>& names) {
  constexpr size_t kNone = size_t(-1);
  std::vector<std::string> plain;
  std::unordered_map<std::string, size_t> numbers;
  for (const std::string& name : names) {
    plain.push_back(plain_name(name));
    numbers.emplace(plain.back(), plain.size() - 1);
  }
  const size_t count = std::min(texts.size(), names.size());
  std::vector<size_t> another(count, kNone);  // the other class that a text names
  size_t own = 0, others = 0, first = kNone;
  for (size_t i = 0; i < count; ++i) {
    const std::string text = plain_name(texts[i]);
    const auto found = numbers.find(text);
    if (text == plain[i]) {
      ++own;
    } else if (found != numbers.end()) {
      another[i] = found->second;
      first = std::min(first, i);
      ++others;
    }
  }
  if (others > std::max<size_t>(own, 1)) return int64_t(first);
  // Exchanged texts form a cycle: the way from text to class never ends.
  for (size_t i = 0; i < count; ++i) {
    size_t at = i, steps = 0;
    while (at < count && another[at] != kNone && steps++ < count) at = another[at];
    if (at < count && steps > count) return int64_t(at);
  }
  return -1;
}

}  // namespace data
