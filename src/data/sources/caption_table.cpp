// SPDX-License-Identifier: Apache-2.0
#include "data/sources/caption_table.hpp"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.hpp"
#include "base/text.hpp"
#include "data/sources/file.hpp"
#include "data/sources/json_text.hpp"
#include "data/sources/plain_text.hpp"
#include "data/sources/tsv_quotes.hpp"

namespace data {
namespace {

using base::Exit;

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = char(std::tolower(uint8_t(c)));
  return out;
}

constexpr size_t kAll = std::string_view::npos;

// Reads one row after the other. `cells` and `line` belong to the row that next() found.
class Rows {
 public:
  Rows(const std::string& path, std::string_view text)
      : path_(path),
        rest_(text),
        csv_(has_ending(path, ".csv")),
        lone_returns_(csv_ || (text.find('\n') == text.npos && text.find('\r') != text.npos)),
        quotes_(csv_ || (!lone_returns_ && quotes_are_written(text))) {}

  // Returns false at the end. A TSV row has at most `most` cells; the last one holds the rest of
  // the line.
  bool next(size_t most) {
    while (end_line()) {  // skips empty lines
    }
    rest_ = without_mark(rest_);  // a file that was appended to another one begins with a mark
    if (rest_.empty()) return false;
    line = next_line_;
    cells.clear();
    quotes_ ? read_quotable(most) : read_tsv(most);
    return true;
  }
  [[noreturn]] void fail(const std::string& what) const {
    base::fail(Exit::data, "'{}' line {}: {}", path_, line, what);
  }
  bool is_csv() const { return csv_; }

  std::vector<std::string> cells;
  int64_t line = 0;
  int64_t unquoted_cells = 0;  // of a TSV, so far

 private:
  // Removes the end of a line, if `rest_` begins with one.
  bool end_line() {
    size_t bytes = rest_.starts_with("\r\n")                                               ? 2
                   : rest_.starts_with('\n') || (lone_returns_ && rest_.starts_with('\r')) ? 1
                                                                                           : 0;
    rest_.remove_prefix(bytes);
    next_line_ += bytes > 0;
    return bytes > 0;
  }

  void read_tsv(size_t most) {
    size_t end = std::min(rest_.find(lone_returns_ ? '\r' : '\n'), rest_.size());
    std::string_view text = rest_.substr(0, end);
    if (text.ends_with('\r')) text.remove_suffix(1);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    ++next_line_;
    for (size_t tab; cells.size() + 1 < most && (tab = text.find('\t')) != text.npos;
         text.remove_prefix(tab + 1))
      cells.emplace_back(text.substr(0, tab));
    cells.emplace_back(text);
    if (const size_t inner = text.find('\r'); text.find('\t', inner) != text.npos)
      fail("a carriage return with a tab after it: end every line with \\n or \\r\\n");
    for (std::string& cell : cells)
      if (std::optional<std::string> content = unquoted(cell)) {
        cell = *std::move(content);
        ++unquoted_cells;
      }
  }

  // Cells that may be in quotes, separated by commas or, in a TSV, by tabs.
  void read_quotable(size_t most) {
    const char separator = csv_ ? ',' : '\t';
    for (bool more = true; more;) {
      cells.emplace_back();
      if (rest_.starts_with('"')) {
        read_quoted(cells.back());
        unquoted_cells += !csv_;
      } else {
        read_plain(cells.back(), cells.size() < most);
      }
      more = rest_.starts_with(separator);
      if (more)
        rest_.remove_prefix(1);
      else if (!rest_.empty() && !end_line())
        fail(fmt::format("{} follows the closing quote of a cell, not a {}",
                         base::quoted(rest_.substr(0, 1)), csv_ ? "comma" : "tab"));
    }
  }
  // Reads a cell without quotes; the last one of a TSV is the rest of the line.
  void read_plain(std::string& cell, bool others_follow) {
    const char* ends = csv_ ? ",\r\n" : others_follow ? "\t\n" : "\n";
    size_t end = std::min(rest_.find_first_of(ends), rest_.size());
    if (!csv_ && end > 0 && rest_[end - 1] == '\r' && (end == rest_.size() || rest_[end] == '\n'))
      --end;
    cell = rest_.substr(0, end);
    rest_.remove_prefix(end);
  }
  void read_quoted(std::string& cell) {
    while (true) {
      rest_.remove_prefix(1);  // the opening quote, or the second one of a pair
      size_t quote = rest_.find('"');
      if (quote == rest_.npos) fail("a cell's quote is never closed");
      cell += rest_.substr(0, quote);
      next_line_ += std::ranges::count(rest_.substr(0, quote), '\n');
      rest_.remove_prefix(quote + 1);
      if (!rest_.starts_with('"')) return;
      cell += '"';
    }
  }

  const std::string& path_;
  std::string_view rest_;
  bool csv_, lone_returns_;  // \r alone ends a line
  bool quotes_;              // cells may be in quotes
  int64_t next_line_ = 1;
};

// The columns of image and caption, and the number of columns.
struct Layout {
  size_t image = 0, caption = 1, columns = 2;
};

std::string list(const std::vector<std::string>& cells) {
  std::vector<std::string> shown;
  for (const std::string& cell : cells) shown.push_back(base::quoted(cell, 40));
  if (shown.size() > 12) {
    shown.resize(12);
    shown.push_back("...");
  }
  return base::join(shown, ", ");
}

// Returns the columns of the header that may be meant: the one with this name, or all with a usual
// name.
std::vector<size_t> candidates(const std::vector<std::string>& header, const std::string& name,
                               const std::vector<std::string>& usual) {
  std::vector<size_t> out;
  for (size_t i = 0; i < header.size(); ++i)
    if (name.empty() ? std::ranges::count(usual, lower(base::trim(header[i]))) > 0
                     : base::trim(header[i]) == name)
      out.push_back(i);
  return out;
}

// Returns the layout that a header gives; nothing if the first line is not a header.
std::optional<Layout> layout_of(const Rows& first, const TableColumns& columns) {
  const std::vector<std::string>& header = first.cells;
  std::vector<size_t> image = candidates(header, columns.image, image_column_names()),
                      caption = candidates(header, columns.caption, caption_column_names());
  bool named = !columns.image.empty() || !columns.caption.empty();
  if (!named && (image.empty() || caption.empty())) return std::nullopt;
  auto only = [&](const std::vector<size_t>& found, const std::string& name, const char* key,
                  const std::vector<std::string>& usual) {
    if (found.empty() && !name.empty())
      first.fail(fmt::format("no column \"{}\" ({}); the header has {}", name, key, list(header)));
    if (found.empty())
      first.fail(fmt::format("no column is called {}; the header has {}: set {}",
                             base::join(usual, ", "), list(header), key));
    if (found.size() > 1)
      first.fail(fmt::format("columns {} and {} could both be meant: choose with {}",
                             base::quoted(header[found[0]]), base::quoted(header[found[1]]), key));
    return found[0];
  };
  Layout out{only(image, columns.image, "image_column", image_column_names()),
             only(caption, columns.caption, "caption_column", caption_column_names()),
             header.size()};
  if (out.image == out.caption)
    first.fail(
        fmt::format("image_column and caption_column are both {}", list({header[out.image]})));
  return out;
}

// Guesses the separator of a row that seems to have only one cell, and returns advice for the
// message.
std::string separator_hint(const Rows& rows) {
  if (rows.cells.size() != 1) return "";
  auto has = [&](char c) { return rows.cells[0].find(c) != std::string::npos; };
  if (rows.is_csv() && has('\t')) return "; it has tabs: call the file .tsv";
  if (rows.is_csv() && has(';')) return "; it has semicolons: save the table with commas";
  if (!rows.is_csv() && has(',')) return "; if commas separate the cells, call the file .csv";
  return "";
}

void check_cells(const Rows& rows, const Layout& layout, bool header) {
  size_t cells = rows.cells.size();
  if (cells == layout.columns) return;
  std::string hint = separator_hint(rows);
  if (!header && !rows.is_csv() && cells == 1)
    rows.fail(fmt::format("no tab between image and caption: {}{}", base::quoted(rows.cells[0], 60),
                          hint));
  if (header || !hint.empty())
    rows.fail(fmt::format(
        "{} cell{}, where {} expected{}", cells, cells == 1 ? "" : "s",
        header ? fmt::format("the header's {} are", layout.columns) : "image and caption are",
        hint));
  rows.fail(
      fmt::format("{} cells, where a table without a header has image and caption: {}; name the "
                  "columns in a first line, or with image_column and caption_column",
                  cells, list(rows.cells)));
}

// Returns the value of a column of one JSON line: a text, or a whole number.
std::string cell_of(const nlohmann::json& object, const std::string& path, int64_t line,
                    const std::string& name, const char* key,
                    const std::vector<std::string>& usual) {
  auto fail = [&](const std::string& what) {
    base::fail(Exit::data, "'{}' line {}: {}", path, line, what);
  };
  std::vector<std::string> columns;
  for (const auto& [column, value] : object.items()) columns.push_back(column);
  const std::vector<size_t> found = candidates(columns, name, usual);
  if (found.empty())
    fail(fmt::format("no \"{}\" ({}) among {}", name.empty() ? base::join(usual, ", ") : name, key,
                     list(columns)));
  if (found.size() > 1)
    fail(fmt::format("\"{}\" and \"{}\" could both be meant: choose with {}", columns[found[0]],
                     columns[found[1]], key));
  const nlohmann::json& value = object.at(columns[found[0]]);
  std::optional<std::string> text = text_of_json(value);
  if (!text)
    fail(fmt::format("\"{}\" is {}, neither a text nor a whole number", columns[found[0]],
                     value.type_name()));
  return *std::move(text);
}

nlohmann::json parse_line(const std::string& path, int64_t number, std::string_view line) {
  std::string why;
  try {
    nlohmann::json object = nlohmann::json::parse(strict_json(line));
    if (object.is_object()) return object;
    why = object.type_name();
  } catch (const nlohmann::json::exception& e) {
    why = base::is_utf8(line) ? e.what() : "not UTF-8 text; save the file as UTF-8";
  }
  if (line.starts_with('[')) why = "a list; write each row as an object on a line of its own";
  base::fail(Exit::data, "'{}' line {}: is not a JSON object: {} ({})", path, number,
             base::quoted(line, 60), base::one_line(why));
}

void read_json_lines(const std::string& path, std::string_view text, const TableColumns& columns,
                     const OnCaption& row) {
  int64_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = base::trim(without_mark(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.empty()) continue;
    const nlohmann::json object = parse_line(path, number, line);
    row(cell_of(object, path, number, columns.image, "image_column", image_column_names()),
        on_one_line(cell_of(object, path, number, columns.caption, "caption_column",
                            caption_column_names())),
        number);
  }
}

bool holds_json_lines(const std::string& path) { return has_ending(path, ".jsonl"); }

}  // namespace

const std::vector<std::string>& image_column_names() {
  static const std::vector<std::string> names{"image",    "images",    "image_path", "image_file",
                                              "img",      "img_path",  "filepath",   "file_path",
                                              "filename", "file_name", "file",       "path"};
  return names;
}
const std::vector<std::string>& caption_column_names() {
  static const std::vector<std::string> names{"caption", "captions",    "title",
                                              "text",    "description", "sentence"};
  return names;
}

bool is_table(const std::string& path) {
  return has_ending(path, ".tsv") || has_ending(path, ".csv") || holds_json_lines(path);
}

TableForm read_caption_table(const std::string& path, std::string_view text,
                             const TableColumns& columns, const OnCaption& row) {
  if (holds_json_lines(path)) {
    read_json_lines(path, text, columns, row);
    return {.header = true};
  }
  Rows rows(path, text);
  bool header = false;
  Layout layout;
  {
    Rows first = rows;
    if (!first.next(kAll)) return {};
    if (std::optional<Layout> known = layout_of(first, columns)) {
      header = true;
      layout = *known;
    }
  }
  size_t most = layout.caption + 1 == layout.columns ? layout.columns : kAll;
  if (header) rows.next(kAll);
  while (rows.next(most)) {
    check_cells(rows, layout, header);
    row(rows.cells[layout.image], on_one_line(rows.cells[layout.caption]), rows.line);
  }
  return {.header = header, .unquoted_cells = rows.unquoted_cells};
}

}  // namespace data
