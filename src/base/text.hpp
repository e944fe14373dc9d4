// SPDX-License-Identifier: Apache-2.0
// Text for people: nearest names, thousands separators, durations, sizes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace base {

// Edit distance with transpositions of neighbours counted as one (optimal string alignment).
int edit_distance(std::string_view a, std::string_view b);
// The candidate nearest to `name` if it is near enough to be a slip of the fingers, else "".
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);
std::string join(std::span<const std::string> parts, std::string_view separator);
std::vector<std::string> split(std::string_view text, char separator);
std::string_view trim(std::string_view text);

bool is_utf8(std::string_view text);
// Foreign text for a message: in double quotes, on one line, cut after `longest` bytes (not within
// a character). Control characters become \xNN, and in what is not UTF-8 all bytes beyond ASCII.
// (fmt 9's {:?} ends the program for some.)
std::string quoted(std::string_view text, size_t longest = 80);

// Foreign text as one line of a log: control characters, and in a text that is not UTF-8 all bytes
// beyond ASCII, become \xHH; the text is cut after `longest` bytes.
std::string one_line(std::string_view text, size_t longest = std::string_view::npos);

std::string with_commas(int64_t value);  // 191,669,504
// big_vision's short form of a time rounded to seconds: "59s", "3m12s", "8h33m", "1d2h3m" ("<25h"
// still counts hours). Source: cappa.md 5.3, golden durations.json.
std::string hms(double seconds);
std::string mebibytes(int64_t bytes);  // "1,024", rounded up to whole MiB

}  // namespace base
