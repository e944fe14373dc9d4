// SPDX-License-Identifier: Apache-2.0
// Quotes in TSV files. Writers of CSV with tabs (Python's excel-tab, pandas, Excel) put a cell in
// quotes if it holds a quote, a tab or a line break, and double its quotes. Other files hold texts
// as they are, such as "open" on a sign.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace data {

// True if such a writer may have added every quote of the file: each cell with a quote begins and
// ends with a quote, and the quotes between are doubled. A cell may span lines if it holds no tab:
// a quote that is never closed would swallow the rows after it, with their tabs.
bool quotes_are_written(std::string_view tsv);

// Returns the content of a cell that only such a writer can have quoted: it is in quotes, with at
// least one doubled quote between. Otherwise returns nothing. For files that also have other
// quotes.
std::optional<std::string> unquoted(std::string_view cell);

}  // namespace data
