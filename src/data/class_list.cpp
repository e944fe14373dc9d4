// SPDX-License-Identifier: Apache-2.0
#include "data/class_list.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "data/ops/op.hpp"
#include "data/sources/class_folder.hpp"

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

}  // namespace

std::optional<ClassList> class_list_of(const Sections& sections, const std::string& name,
                                       const std::string& field) {
  try {
    const std::optional<Place> place = place_of_list(sections, name, field);
    if (place) return ClassList{place->key, ClassNames(place->from)};
  } catch (const base::Error&) {
    // Opening the set reports it. A deck may be checked on a machine without its data.
  }
  return {};
}

int64_t first_difference(const ClassNames& one, const ClassNames& other) {
  const auto end = one.names().begin() + std::min(one.size(), other.size());
  const auto [at, there] = std::mismatch(one.names().begin(), end, other.names().begin());
  return at == end ? -1 : at - one.names().begin();
}

}  // namespace data
