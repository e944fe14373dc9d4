// SPDX-License-Identifier: Apache-2.0
#include "data/sources/member_json.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.hpp"
#include "base/text.hpp"
#include "data/sources/json_text.hpp"
#include "data/sources/plain_text.hpp"
#include "data/sources/safe_name.hpp"

namespace data {
namespace {

using Json = nlohmann::json;

constexpr size_t kLargest = size_t{4} << 20;  // bytes of captions of one image
constexpr int kDeepest = 16;

}  // namespace

MemberName split_member_field(std::string_view text) {
  size_t colon = text.find(':');
  if (colon != text.npos)
    return {{lower_case(text.substr(0, colon))}, std::string(text.substr(colon + 1))};
  MemberName out;
  std::set<std::string> spellings;  // "jpg;JPG" is one extension; "jpg;jpg" is a mistake
  for (const std::string& part : base::split(text, ';')) {
    const std::string spelling(base::trim(part)), extension = lower_case(spelling);
    const bool known = std::ranges::count(out.extensions, extension) > 0;
    if (spellings.insert(spelling).second && known) continue;
    out.extensions.push_back(extension);
  }
  return out;
}

std::string MemberName::text() const {
  std::string out;
  for (const std::string& extension : extensions) out += (out.empty() ? "." : " or .") + extension;
  return out;
}

Texts texts_in_json(std::string_view text, const std::string& key) {
  auto fail = [&](const std::string& what) { base::fail(base::Exit::data, "its JSON {}", what); };
  if (text.size() > kLargest)
    fail(fmt::format("has {} bytes; at most {} are read", text.size(), kLargest));
  Json json;
  try {
    // Keeps only the requested key of the outermost object.
    json = Json::parse(strict_json(text), [&](int depth, Json::parse_event_t event, Json& value) {
      if (depth > kDeepest) fail("is nested too deep");
      return event != Json::parse_event_t::key || depth != 1 ||
             value.get_ref<const std::string&>() == key;
    });
  } catch (const Json::exception& e) {
    if (const std::string_view wide = wide_text(text); !wide.empty())
      fail(fmt::format("cannot be read: it is {} text, not UTF-8", wide));
    fail(fmt::format("cannot be read: {}", base::is_utf8(text) ? e.what() : "it is not UTF-8"));
  }
  if (!json.is_object() || !json.contains(key)) fail(fmt::format("has no \"{}\"", key));
  const Json& value = json[key];
  Texts out;
  if (value.is_array() && !value.empty()) {
    for (const Json& one : value) {
      const std::optional<std::string> known = text_of_json(one);
      if (!known) fail(fmt::format("\"{}\" holds {} among its texts", key, one.type_name()));
      out.push_back(on_one_line(*known));
    }
    return out;
  }
  const std::optional<std::string> known = text_of_json(value);
  if (!known)
    fail(fmt::format("\"{}\" is {}, not a text, a whole number or a list of them", key,
                     value.is_array() ? "an empty list" : value.type_name()));
  out.push_back(on_one_line(*known));
  return out;
}

}  // namespace data
