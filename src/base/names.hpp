// SPDX-License-Identifier: Apache-2.0
// Names of an enum's values, in one table for decks and for messages.
//   inline constexpr std::pair<const char*, Sums> kSumsNames[] = {{"f32", Sums::f32}, ...};
#pragma once

#include <string_view>
#include <type_traits>
#include <utility>

#include "base/error.hpp"

namespace base {

template <class E, size_t N>
const char* name_of(const std::pair<const char*, E> (&names)[N], std::type_identity_t<E> value) {
  for (const auto& one : names)
    if (one.second == value) return one.first;
  fail(Exit::internal, "value {} has no name", int(value));
}

// The value of that name, which must be one of the table.
template <class E, size_t N>
E value_of(const std::pair<const char*, E> (&names)[N], std::string_view name) {
  for (const auto& one : names)
    if (one.first == name) return one.second;
  fail(Exit::internal, "no value is named '{}'", name);
}

}  // namespace base
