// SPDX-License-Identifier: Apache-2.0
// Checked integer conversion, and divisions that round up.
#pragma once

#include <limits>

#include "base/error.hpp"

namespace base {

template <class To, class From>
To narrow(From value) {
  To out = static_cast<To>(value);
  CHECK(static_cast<From>(out) == value && (out < To{}) == (value < From{}),
        "{} does not fit the narrower type", value);
  return out;
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t multiple) { return ceil_div(a, multiple) * multiple; }

}  // namespace base
