// Texts inside a JSON member of a sample: fields = { captions = "json:captions" }.
#pragma once

#include <string>
#include <string_view>

#include "data/array.hpp"

namespace data {

// "json:captions" -> "json", "captions"; "png" -> "png", "".
struct MemberName {
  std::string extension, key;
};
MemberName split_member_field(std::string_view text);

// The texts under a key of a JSON object: a list of texts, or a text, which is a list of one. Error(Exit::data) for
// anything else; no more memory is taken than a few times the text's size.
Texts texts_in_json(std::string_view text, const std::string& key);

}  // namespace data
