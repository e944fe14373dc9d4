// SPDX-License-Identifier: Apache-2.0
#include "eval/captions/caption_tokens.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace eval {
namespace {

// A byte that is not UTF-8 becomes this plus its value, as with Python's "surrogateescape".
constexpr char32_t kByte = 0xdc00;

// Reads one code point at `at`, and moves `at` behind it.
char32_t code_point(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return char32_t(static_cast<unsigned char>(text[i])); };
  const char32_t first = byte(at);
  const size_t more = first < 0xc2 ? 0 : first < 0xe0 ? 1 : first < 0xf0 ? 2 : first < 0xf5 ? 3 : 0;
  char32_t value = more == 0 ? first : first & (0x3fu >> more);
  bool good = (first < 0x80 || more > 0) && at + more < text.size();
  for (size_t i = 1; good && i <= more; ++i) {
    good = (byte(at + i) & 0xc0) == 0x80;
    value = value << 6 | (byte(at + i) & 0x3f);
  }
  const bool too_long = (more == 2 && value < 0x800) || (more == 3 && value < 0x10000);
  if (!good || too_long || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) {
    ++at;
    return kByte + first;
  }
  at += more + 1;
  return value;
}

void append_utf8(char32_t c, std::string& out) {
  const auto tail = [&](int shift) { out += char(0x80 | (c >> shift & 0x3f)); };
  if (c >= kByte && c < kByte + 0x100) {
    out += char(c - kByte);
  } else if (c < 0x80) {
    out += char(c);
  } else if (c < 0x800) {
    out += char(0xc0 | c >> 6);
    tail(0);
  } else if (c < 0x10000) {
    out += char(0xe0 | c >> 12);
    tail(6);
    tail(0);
  } else {
    out += char(0xf0 | c >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

// True for the white space of Python's str.split().
bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
         c == 0x205f || c == 0x3000;
}

bool is_digit(char32_t c) { return c >= '0' && c <= '9'; }
bool is_upper(char32_t c) { return c >= 'A' && c <= 'Z'; }

bool is_letter(char32_t c) {
  if (c < 0x80) return is_upper(c) || (c >= 'a' && c <= 'z');
  if (c == 0xd7 || c == 0xf7 || is_space(c)) return false;
  const std::pair<char32_t, char32_t> ranges[] = {
      {0xaa, 0xaa},     {0xb5, 0xb5},     {0xba, 0xba},     {0xc0, 0x2af},
      {0x300, 0x1fff},  {0x2c00, 0x2dff}, {0x3005, 0x3007}, {0x3041, 0x30fa},
      {0x30fc, 0x31ff}, {0x3400, 0xd7a3}, {kByte, 0xdcff},  {0xf900, 0xfdff},
      {0xfe70, 0xfefc}, {0xff21, 0xff3a}, {0xff41, 0xff5a}, {0xff66, 0xffdc}};
  return std::any_of(std::begin(ranges), std::end(ranges),
                     [c](const auto& r) { return c >= r.first && c <= r.second; });
}

bool is_word(char32_t c) { return is_letter(c) || is_digit(c); }
bool is_hyphen(char32_t c) { return c == '-' || c == 0x2010 || c == 0x2011; }
bool is_apostrophe(char32_t c) { return c == '\'' || c == 0x2019; }

char32_t lower(char32_t c) {
  const bool odd = c % 2 == 1;
  if (is_upper(c)) return c + 0x20;
  if (c < 0xc0) return c;
  if (c <= 0xde) return c == 0xd7 ? c : c + 0x20;
  if (c == 0x178) return 0xff;
  if ((c >= 0x139 && c <= 0x148) || (c >= 0x179 && c <= 0x17e)) return odd ? c + 1 : c;
  if ((c >= 0x100 && c <= 0x12f) || (c >= 0x132 && c <= 0x137) || (c >= 0x14a && c <= 0x177))
    return odd ? c : c + 1;
  if ((c >= 0x391 && c <= 0x3ab && c != 0x3a2) || (c >= 0x410 && c <= 0x42f)) return c + 0x20;
  if (c >= 0x400 && c <= 0x40f) return c + 0x50;
  return c;
}

std::u32string lower(std::u32string_view word) {
  std::u32string out(word);
  for (char32_t& c : out) c = lower(c);
  return out;
}

using Words = std::set<std::u32string, std::less<>>;

// Words that keep the point behind them.
const Words kAbbreviations = {
    U"adm",    U"al",   U"ala",  U"alex", U"apr",   U"ariz", U"assn",  U"assoc", U"asst", U"atty",
    U"aug",    U"ave",  U"bldg", U"blvd", U"brig",  U"bros", U"calif", U"capt",  U"cf",   U"cie",
    U"cmdr",   U"co",   U"col",  U"colo", U"comdr", U"conn", U"corp",  U"cos",   U"cpl",  U"ct",
    U"dec",    U"dept", U"det",  U"dr",   U"esq",   U"est",  U"etc",   U"ext",   U"feb",  U"fla",
    U"fri",    U"ft",   U"ga",   U"gen",  U"gov",   U"hon",  U"inc",   U"ind",   U"insp", U"jan",
    U"jr",     U"jul",  U"jun",  U"kan",  U"ky",    U"lt",   U"ltd",   U"maj",   U"mar",  U"md",
    U"messrs", U"mich", U"minn", U"mlle", U"mme",   U"mo",   U"mon",   U"mont",  U"mr",   U"mrs",
    U"ms",     U"mt",   U"neb",  U"nev",  U"nov",   U"oct",  U"okla",  U"penn",  U"ph.d", U"plc",
    U"pres",   U"prof", U"pte",  U"pty",  U"pvt",   U"rd",   U"rep",   U"rev",   U"sen",  U"sep",
    U"sept",   U"sgt",  U"sq",   U"sr",   U"st",    U"ste",  U"supt",  U"tel",   U"tenn", U"thu",
    U"thurs",  U"tue",  U"tues", U"univ", U"va",    U"vs",   U"vt",    U"wed",   U"wis",  U"wm",
    U"wyo"};
// Further abbreviations, if they begin with a capital letter: in lower case they are words.
const Words kCapitalAbbreviations = {U"ark",  U"del", U"ill", U"la",  U"mass",
                                     U"miss", U"ore", U"pa",  U"tex", U"wash"};
// Further abbreviations, only in front of a number.
const Words kNumberAbbreviations = {U"no", U"nos", U"pp", U"fig", U"art"};
// Ends of words that become words of their own, besides "n't".
const Words kContractions = {U"s", U"m", U"d", U"ll", U"re", U"ve"};
// Words that keep an apostrophe in front.
const Words kClipped = {U"em", U"n", U"til", U"till", U"cause"};
// Words that are split, by the place of the cut.
const std::map<std::u32string, size_t, std::less<>> kCuts = {
    {U"cannot", 3}, {U"gonna", 3}, {U"gotta", 3}, {U"lemme", 3}, {U"gimme", 3}, {U"wanna", 3}};
// Signs that are replaced.
const std::map<char32_t, std::u32string> kSpelled = {
    {'(', U"-lrb-"}, {')', U"-rrb-"},  {'[', U"-lsb-"}, {']', U"-rsb-"},  {'{', U"-lcb-"},
    {'}', U"-rcb-"}, {0xa2, U"cents"}, {0xa3, U"#"},    {0xa4, U"$"},     {0x20ac, U"$"},
    {0xbc, U"1/4"},  {0xbd, U"1/2"},   {0xbe, U"3/4"},  {0x2153, U"1/3"}, {0x2154, U"2/3"}};
// Signs that are dropped: punctuation, quotation marks, and those without a token of their own.
const std::u32string_view kDropped =
    U".,:;\"'`-\u2018\u2019\u201c\u201d\u00ab\u00bb\u2039\u203a\u2012\u2013\u2014\u2015\u2026"
    U"\u00ad\u200b\u200c\u200d\ufe0e\ufe0f\ufeff\u300c\u300d\u300e\u300f";

class Scanner {
 public:
  explicit Scanner(std::u32string text) : text_(std::move(text)) {}

  std::vector<std::u32string> tokens() {
    while (at_ < text_.size()) {
      if (is_space(text_[at_]))
        ++at_;
      else if (!number() && !word() && !clipped() && !smiley())
        sign();
    }
    return std::move(tokens_);
  }

 private:
  char32_t peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : U' ';
  }
  char32_t behind(size_t place) const { return place < text_.size() ? text_[place] : U' '; }
  size_t letters_from(size_t place) const {
    size_t n = 0;
    while (is_letter(behind(place + n))) ++n;
    return n;
  }

  void take(size_t length) {
    tokens_.push_back(lower(text_.substr(at_, length)));
    at_ += length;
  }

  // A number with a sign or with points, commas or colons in it. "5th" is a word.
  bool number() {
    const auto separates = [&](size_t place) {
      const char32_t c = behind(place);
      return (c == '.' || c == ',' || c == ':') && is_digit(behind(place + 1));
    };
    size_t end = at_ + ((peek() == '-' || peek() == '+') ? 1 : 0);
    const bool has_sign = end > at_;
    if (!is_digit(behind(end)) && !separates(end)) return false;
    bool separated = false;
    while (is_digit(behind(end)) || separates(end)) {
      separated = separated || separates(end);
      ++end;
    }
    const char32_t next = behind(end);
    const bool joined = (is_hyphen(next) || next == '/') && is_word(behind(end + 1));
    if (joined && is_digit(text_[at_])) return false;  // "3.5-inch", "1/2"
    if (!separated && !has_sign && (is_letter(next) || next == '_')) return false;  // "1st"
    take(end - at_);
    return true;
  }

  // Returns the length of the contraction at an apostrophe, 0 if there is none.
  size_t contraction(size_t place) const {
    if (!is_apostrophe(behind(place))) return 0;
    const size_t letters = letters_from(place + 1);
    if (is_digit(behind(place + 1 + letters))) return 0;
    return kContractions.contains(lower(text_.substr(place + 1, letters))) ? letters + 1 : 0;
  }
  void take_contractions() {
    while (const size_t length = contraction(at_)) {
      take(length);
      tokens_.back()[0] = '\'';
    }
  }

  // True if the apostrophe belongs to the word: "o'clock", "d'Ivoire", "ma'am", "O'Brien".
  bool keeps_apostrophe(size_t place) const {
    const size_t begin = letters_before(place), length = place - begin;
    const char32_t before = behind(place - 1), after = behind(place + 1);
    const auto vowel = [](char32_t c) {
      return std::u32string_view(U"aeiou").find(lower(c)) != std::u32string_view::npos;
    };
    if (length == 0 || !is_letter(after)) return false;
    const std::u32string rest = lower(text_.substr(place + 1, letters_from(place + 1)));
    if (length == 1) {
      if (lower(before) == 'o' && rest == U"clock") return true;
      if (lower(before) == 'l' || lower(before) == 'd') return true;
      if (is_upper(before) && before != 'I' && before != 'Y' && rest.size() >= 2) return true;
    }
    const bool ends_in_vowel = vowel(before) || (lower(before) == 'y' && length > 1);
    return (length > 1 || lower(before) == 'o') && ends_in_vowel &&
           (vowel(after) || is_upper(after));
  }
  size_t letters_before(size_t place) const {
    size_t begin = place;
    while (begin > at_ && is_letter(text_[begin - 1])) --begin;
    return begin;
  }

  bool is_abbreviation(size_t end) const {
    const std::u32string all = text_.substr(at_, end - at_), small = lower(all);
    bool initials = is_letter(all[0]);  // "a" or "u.s"
    for (size_t i = 1; i < all.size(); ++i)
      initials = initials && (i % 2 == 1 ? all[i] == '.' : is_letter(all[i]));
    if (initials && all.size() % 2 == 1) return true;
    if (kAbbreviations.contains(small)) return true;
    if (is_upper(all[0]) && kCapitalAbbreviations.contains(small)) return true;
    size_t next = end + 1;
    while (next < text_.size() && is_space(text_[next])) ++next;
    return is_digit(behind(next)) && kNumberAbbreviations.contains(small);
  }

  // True if the word up to `end` has only letters, with points between them.
  bool is_plain(size_t end) const {
    return std::all_of(text_.begin() + int64_t(at_), text_.begin() + int64_t(end),
                       [](char32_t c) { return is_letter(c) || c == '.'; });
  }

  // Returns end + 1 if the character at `end` belongs to the word that ends there, otherwise `end`.
  size_t joined(size_t end) const {
    const char32_t c = behind(end), before = behind(end - 1), after = behind(end + 1);
    const bool links = is_hyphen(c) || c == '/' || c == '_';
    if (links && is_word(after) && !(c == '_' && before == '_')) return end + 1;
    if (c == 0xad) return end + 1;  // soft hyphen
    const bool in_plain_word = is_letter(before) && is_letter(after) && is_plain(end);
    if (in_plain_word && (c == '.' || c == '!' || c == '?')) return end + 1;
    if ((c == '.' || c == ',' || c == ':') && is_digit(before) && is_digit(after) &&
        is_digit(text_[at_]))
      return end + 1;
    if (c == '.' && is_letter(before) && is_abbreviation(end)) return end + 1;
    if (c == '&' && is_upper(before) && is_upper(after)) return end + 1;
    if (is_apostrophe(c) && contraction(end) == 0 && keeps_apostrophe(end)) return end + 1;
    return end;
  }

  bool word() {
    if (!is_word(peek())) return false;
    size_t end = at_;
    bool ended_by_point = false;
    while (true) {
      while (is_word(behind(end)) && !ended_by_point) ++end;
      const size_t next = joined(end);
      if (next == end || (ended_by_point && !is_hyphen(behind(end)))) break;
      ended_by_point = behind(end) == '.' && is_letter(behind(end - 1)) && !is_letter(behind(next));
      end = next;
    }
    const std::u32string small = lower(text_.substr(at_, end - at_));
    const bool apostrophe = is_apostrophe(behind(end));
    const char32_t after = lower(behind(end + 1));
    if (apostrophe && after == 't' && small.back() == 'n' && letters_from(end + 1) == 1) {
      if (small.size() > 1) take(end - 1 - at_);
      take(3);
      tokens_.back()[1] = '\'';
    } else if (apostrophe && (small == U"y" || small == U"j") && is_letter(after)) {
      take(2);  // "y' all", "j' ai"
    } else if (const auto cut = kCuts.find(small); cut != kCuts.end() && !apostrophe) {
      take(cut->second);
      take(small.size() - cut->second);
    } else {
      take(end - at_);
    }
    take_contractions();
    return true;
  }

  // Words behind an apostrophe: "'s", "'em", "'80s", "'n'", "'tis".
  bool clipped() {
    if (!is_apostrophe(peek())) return false;
    const char32_t before = at_ > 0 ? text_[at_ - 1] : U' ';
    if (contraction(at_) && !is_apostrophe(before)) {
      take_contractions();
      return true;
    }
    const size_t letters = letters_from(at_ + 1);
    const std::u32string rest = lower(text_.substr(at_ + 1, letters));
    if (rest == U"tis" || rest == U"twas") {
      take(2);
      take(letters - 1);
      return true;
    }
    if (rest == U"n" && is_apostrophe(peek(2))) {
      take(3);
      return true;
    }
    if (is_word(before) || is_apostrophe(before)) return false;
    if (kClipped.contains(rest)) {
      take(letters + 1);
      return true;
    }
    if (!is_digit(peek(1)) || !is_digit(peek(2))) return false;
    const size_t length = peek(3) == 's' ? 4 : 3;
    if (is_word(peek(length)) || is_apostrophe(peek(length))) return false;
    take(length);
    return true;
  }

  bool smiley() {
    if (peek() != ':' && peek() != ';' && peek() != '=') return false;
    const size_t length = peek(1) == '-' ? 2 : 1;
    if (peek(length) != '(' && peek(length) != ')') return false;
    std::u32string token = text_.substr(at_, length) + kSpelled.at(peek(length));
    tokens_.push_back(std::move(token));
    at_ += length + 1;
    return true;
  }

  // A sign, or a run of equal signs that is one token.
  void sign() {
    const char32_t c = peek();
    size_t run = 1;
    if (c == '!' || c == '?') {
      while (peek(run) == '!' || peek(run) == '?') ++run;
      if (run == 1)
        ++at_;
      else
        take(run);
    } else if (const auto spelled = kSpelled.find(c); spelled != kSpelled.end()) {
      tokens_.push_back(spelled->second);
      ++at_;
    } else if (kDropped.find(c) != std::u32string_view::npos || c >= 0x10000) {
      ++at_;
    } else if (c == '#' && is_letter(peek(1))) {
      take(1 + letters_from(at_ + 1));
    } else if (c == '@' && is_letter(peek(1)) && is_word(peek(2))) {
      while (is_word(peek(run)) || peek(run) == '_') ++run;
      take(run);
    } else {
      if (c == '*' || c == '_' || c == '<' || c == '>')
        while (peek(run) == c) ++run;
      take(run);
    }
  }

  std::u32string text_;
  size_t at_ = 0;
  std::vector<std::u32string> tokens_;
};

}  // namespace

std::vector<std::string_view> split_at_white_space(std::string_view text) {
  std::vector<std::string_view> words;
  size_t begin = 0, at = 0;
  const auto end_word = [&](size_t end) {
    if (end > begin) words.push_back(text.substr(begin, end - begin));
  };
  while (at < text.size()) {
    const size_t here = at;
    if (!is_space(code_point(text, at))) continue;
    end_word(here);
    begin = at;
  }
  end_word(text.size());
  return words;
}

std::string tokenize_caption(std::string_view caption) {
  std::u32string text;
  for (size_t at = 0; at < caption.size();) text += code_point(caption, at);
  std::string out;
  for (const std::u32string& token : Scanner(std::move(text)).tokens()) {
    if (!out.empty()) out += ' ';
    for (char32_t c : token)
      if (c != 0xad) append_utf8(c, out);
  }
  return out;
}

}  // namespace eval
