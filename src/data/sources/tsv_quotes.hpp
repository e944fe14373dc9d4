// SPDX-License-Identifier: Apache-2.0
// Quotes in TSV files. Writers of CSV with tabs (Python's excel-tab, pandas, Excel) put a cell that
// holds a quote, a tab or a line break in quotes, and double its quotes. Other files hold texts as
// they are, such as "open" on a sign.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace data {

// True if every quote of the file is one that such a writer puts: each cell with a quote begins and
// ends with one, and those between are doubled. A cell may span lines if it holds no tab: a quote
// that is never closed would swallow the rows after it, with their tabs.
bool quotes_are_written(std::string_view tsv);

// Returns the content of a cell that can only be a writer's, in a file with other quotes as well:
// in quotes, with at least one pair of doubled quotes between. Otherwise returns nothing.
std::optional<std::string> unquoted(std::string_view cell);

}  // namespace data
