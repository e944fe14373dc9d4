// SPDX-License-Identifier: Apache-2.0
// Text as people's programs write it: byte order marks, line breaks, Python's JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace data {

// Returns the text without UTF-8's byte order marks at its start.
std::string_view without_mark(std::string_view text);

// Returns "UTF-16" or "UTF-32" if the text begins with the byte order mark of this encoding, or
// with Latin letters in this encoding; else "".
std::string_view wide_text(std::string_view text);

// Returns a text on one line: line breaks at its ends are removed, and each other run of them
// becomes one space. Unicode's line breaks count: \r and \n, \v and \f, U+0085, U+2028, U+2029.
std::string on_one_line(std::string_view text);

// Reads a whole text file without its mark. `what` names the content in the message for a file of
// more than `most` bytes. Throws Error(Exit::data), also for UTF-16 and UTF-32.
std::string read_text_file(const std::string& path, int64_t most, std::string_view what);

// Reads a list with one entry per line, with any kind of line end. Blanks around entries, byte
// order marks before them and empty lines do not count.
std::vector<std::string> read_list(const std::string& path, std::string_view what);

// Returns the whole number of 32 bits that a text holds, alone or between blanks; nothing for any
// other text. 7.0 counts as 7: pandas writes whole numbers like this if their column has missing
// values.
std::optional<int32_t> whole_number(std::string_view text);

// Returns JSON text that any parser reads. NaN, Infinity and -Infinity, which Python's json module
// writes, become null. So does a number like 1e999, which is infinite. Whole numbers of more than
// 18 digits become texts. JavaScript may cut a character in half: the escape of half a surrogate
// pair becomes U+FFFE, U+FFFF, U+FFFE. These are not characters and never occur together
// (json_text.hpp).
std::string strict_json(std::string_view text);

}  // namespace data
