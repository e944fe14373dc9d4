// SPDX-License-Identifier: Apache-2.0
// NaN in text for people.
#pragma once

#include <string>

namespace base {

// Replaces the number "-nan" by "nan": the sign of a NaN means nothing, and differs between
// processors. A word or a file name that contains "-nan" stays.
std::string plain_nan(std::string text);

}  // namespace base
