// SPDX-License-Identifier: Apache-2.0
// The libraries that a build may lack (TRAINER_WITHOUT in .cmake/Dependencies.cmake). A file
// no_NAME.cpp then replaces the file that uses the library. It refuses inputs that need the
// library, and names the library.
#pragma once

#include <string>

namespace data {

bool built_with_gif();
bool built_with_webp();
bool built_with_sentencepiece();
std::string png_version();  // of the library that the process has loaded

}  // namespace data
