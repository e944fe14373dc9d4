// SPDX-License-Identifier: Apache-2.0
// Selects the member of a sample that becomes a field, and texts inside a JSON member: fields = {
// image = "jpg;png", captions = "json:captions" }.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/array.hpp"

namespace data {

// Extensions are in lower case, like the extensions of members. "png" -> {"png"}, ""; "PNG" ->
// {"png"}, ""; "jpg;jpeg" -> {"jpg", "jpeg"}, ""; "json:captions" -> {"json"}, "captions".
struct MemberName {
  std::vector<std::string> extensions;  // the member is the first of these in the sample
  std::string key;
  std::string text() const;  // ".jpg or .jpeg"
};
MemberName split_member_field(std::string_view text);

// Returns the texts under a key of a JSON object, each on one line: a list of texts, or a single
// text as a list of one. Whole numbers count as texts (json_text.hpp). Throws Error(Exit::data) for
// anything else. Needs at most a few times the memory of `text`.
Texts texts_in_json(std::string_view text, const std::string& key);

}  // namespace data
