// SPDX-License-Identifier: Apache-2.0
// Which tokenizer makes a field, found in the preprocessing string.
#pragma once

#include <string>
#include <string_view>

namespace data {

// NAME of the last tokenize("NAME", ...) that yields `field`; "" if none does. The string must be
// valid.
std::string tokenizer_of(std::string_view preprocess, std::string_view field);

}  // namespace data
