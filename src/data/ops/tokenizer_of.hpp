// SPDX-License-Identifier: Apache-2.0
// Finds the tokenizer of a field in the preprocessing string.
#pragma once

#include <string>
#include <string_view>

namespace data {

// Returns NAME of the last tokenize("NAME", ...) that yields `field`; "" if there is none. The
// string must be valid.
std::string tokenizer_of(std::string_view preprocess, std::string_view field);

}  // namespace data
