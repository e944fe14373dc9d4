// SPDX-License-Identifier: Apache-2.0
// Text for people: nearest names, thousands separators, durations, sizes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace base {

// Returns the edit distance. A transposition of neighbours counts as one (optimal string
// alignment).
int edit_distance(std::string_view a, std::string_view b);
// Returns the candidate nearest to `name` if it is near enough for a typing error, else "".
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);
std::string join(std::span<const std::string> parts, std::string_view separator);
std::vector<std::string> split(std::string_view text, char separator);
std::string_view trim(std::string_view text);

bool is_utf8(std::string_view text);
// Returns foreign text for a message: in double quotes, on one line, cut after `longest` bytes (not
// within a character). Control characters become \xNN; in a text that is not UTF-8, all bytes
// beyond ASCII do too. (fmt 9's {:?} aborts for some texts.)
std::string quoted(std::string_view text, size_t longest = 80);

// Returns foreign text as one line of a log. Control characters become \xHH; in a text that is not
// UTF-8, all bytes beyond ASCII do too. The text is cut after `longest` bytes.
std::string one_line(std::string_view text, size_t longest = std::string_view::npos);

std::string with_commas(int64_t value);  // 191,669,504
// Returns big_vision's short form of a time rounded to seconds: "59s", "3m12s", "8h33m", "1d2h3m".
// Times below 25 h are in hours. Source: cappa.md 5.3, golden durations.json.
std::string hms(double seconds);
std::string mebibytes(int64_t bytes);  // "1,024", rounded up to whole MiB

}  // namespace base
