// SPDX-License-Identifier: Apache-2.0
// Reads tables of images and captions, with one row per caption. A table is TSV or CSV, with or
// without a header line, or JSONL. tools/pack_dataset reads them by the same rules
// (tests/run/own_data_test.py compares the two).
//
//   header   The first line is a header if one cell names the image (image, filepath, file_name,
//            path, ...) and another one the caption (caption, title, text, ...), in letters of any
//            case, or if TableColumns names a column. Other columns are ignored.
//            Without a header the columns are image, caption.
//   TSV      Tabs separate the cells. Quotes are part of the text, unless a writer of CSV added
//            them (tsv_quotes.hpp). A caption in the last column is the rest of its line, tabs
//            included.
//   CSV      RFC 4180: commas, cells in double quotes, a quote doubled within them.
//   JSONL    An object per line, whose keys are the columns; its values are texts or whole numbers.
//   All      Lines end in \n or \r\n, or all in \r. Empty lines are skipped. An empty caption is a
//            caption. Line breaks within a caption become one space (plain_text.hpp).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace data {

// Names in the header; "" = the column is found among the usual names.
struct TableColumns {
  std::string image, caption;
};

bool is_table(const std::string& path);  // .tsv, .csv or .jsonl

// `line` is the row's first line in the file, counted from 1.
using OnCaption =
    std::function<void(std::string_view image, std::string_view caption, int64_t line)>;

struct TableForm {
  bool header = false;         // the first line was a header
  int64_t unquoted_cells = 0;  // cells of a TSV whose quotes a writer of CSV had added
};

// Calls `row` for every row of `text`, the content of the file `path`. Throws Error(Exit::data)
// with file and line for a header that lacks a column or has several candidates, and for rows with
// too few or too many cells.
TableForm read_caption_table(const std::string& path, std::string_view text,
                             const TableColumns& columns, const OnCaption& row);

// Return the usual column names, for messages and documents.
const std::vector<std::string>& image_column_names();
const std::vector<std::string>& caption_column_names();

}  // namespace data
