// SPDX-License-Identifier: Apache-2.0
// Words of captions, as COCO's published scorer sees them. It runs Stanford's PTBTokenizer (CoreNLP
// 3.4.1, -preserveLines -lowerCase) and drops punctuation. tokenize_caption repeats the rules that
// apply to captions.
//
// These rules are repeated:
// * Letters become lower case. "it's" becomes "it 's", "don't" "do n't", "cannot" "can not".
// * Words that a hyphen, a slash or a point joins stay one word. Abbreviations and initials keep
//   their point ("st.", "u.s."), and numbers stay one word ("1,000.5", "10:30", "1/2", "-5").
// * These are dropped: . , : ; ! ? - -- ... and all quotation marks. Runs such as "!!" are words.
// * Brackets become words ("-lrb-"), which the published scorer keeps. Other signs are words of
//   their own ("$", "%", "&"). Currencies and fractions are spelled out ("#" for a pound, "1/2").
// * Code points from U+10000 on are deleted, which are most emoji.
//
// These cases differ:
// * Mail and web addresses, file names, versions ("v1.2"), markup and entities ("&amp;"), phone
//   numbers in brackets, "US$", "c++", and smileys that end in a letter follow no rules of their
//   own.
// * The point of a single letter stays in front of a new sentence ("plan b. The").
// * Lower case covers Latin, Greek and Cyrillic without rare letters, and knows no final sigma.
// * A line break within a caption is a space. Python's scorer shifts captions at some of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace eval {

// Splits at runs of Unicode white space, as Python's str.split() does. All other bytes belong to
// words, including those that are not UTF-8.
std::vector<std::string_view> split_at_white_space(std::string_view text);

// Returns the words of a caption with one space between them; empty if it has none.
std::string tokenize_caption(std::string_view caption);

}  // namespace eval
