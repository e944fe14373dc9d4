// SPDX-License-Identifier: Apache-2.0
#include "data/sources/json_text.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

namespace data {

std::optional<std::string> text_of_json(const nlohmann::json& value) {
  constexpr double kExact = 9007199254740992.0;  // 2^53: larger doubles may have been rounded
  if (value.is_string()) {
    std::string text = value.get<std::string>();
    constexpr std::string_view kHalf = "\xEF\xBF\xBE\xEF\xBF\xBF\xEF\xBF\xBE";
    for (size_t at = 0; (at = text.find(kHalf, at)) != text.npos; at += 3)
      text.replace(at, kHalf.size(), "\xED\xA0\x80");
    return text;
  }
  if (value.is_number_integer()) return value.dump();
  if (value.is_boolean()) return value.get<bool>() ? "1" : "0";
  if (!value.is_number_float()) return std::nullopt;
  const double number = value.get<double>();
  if (number != std::trunc(number) || std::abs(number) > kExact) return std::nullopt;
  return std::to_string(int64_t(number));
}

}  // namespace data
