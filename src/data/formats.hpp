// SPDX-License-Identifier: Apache-2.0
// The libraries that a build may lack (TRAINER_WITHOUT in .cmake/Dependencies.cmake). A file
// no_NAME.cpp then replaces the one that uses the library. It refuses what needs the library, by
// name.
#pragma once

namespace data {

bool built_with_gif();
bool built_with_webp();
bool built_with_sentencepiece();

}  // namespace data
