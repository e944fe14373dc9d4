// SPDX-License-Identifier: Apache-2.0
// The member of a sample that becomes a field, and texts inside a JSON member: fields = { image =
// "jpg;png", captions = "json:captions" }.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/array.hpp"

namespace data {

// "png" -> {"png"}, ""; "jpg;jpeg" -> {"jpg", "jpeg"}, ""; "json:captions" -> {"json"}, "captions".
struct MemberName {
  std::vector<std::string> extensions;  // a sample's member is the first of these that it has
  std::string key;
  std::string text() const;  // ".jpg or .jpeg"
};
MemberName split_member_field(std::string_view text);

// The texts under a key of a JSON object: a list of texts, or a text, which is a list of one.
// Error(Exit::data) for anything else; no more memory is taken than a few times the text's size.
Texts texts_in_json(std::string_view text, const std::string& key);

}  // namespace data
