// SPDX-License-Identifier: Apache-2.0
#include "models/decoders/text_chunks.hpp"

#include <algorithm>
#include <span>

#include "base/narrow.hpp"

namespace models {
namespace {

// A text up to its last token.
struct Text {
  std::span<const int32_t> ids;
  int32_t number;
};
using Texts = std::span<const Text>;

// Returns the texts that have tokens, ordered so that texts with equal beginnings are neighbours.
std::vector<Text> sorted_texts(const TextList& list, int32_t pad_id) {
  std::vector<Text> out;
  for (int64_t t = 0; t < list.count(); ++t) {
    std::span<const int32_t> ids(list.ids.data() + t * list.length, size_t(list.length));
    while (!ids.empty() && ids.back() == pad_id) ids = ids.first(ids.size() - 1);
    if (!ids.empty()) out.push_back({ids, int32_t(t)});
  }
  std::ranges::stable_sort(out, [](const Text& a, const Text& b) {
    return std::ranges::lexicographical_compare(a.ids, b.ids);
  });
  return out;
}

int64_t common_tokens(const Text& a, const Text& b) {
  return std::ranges::mismatch(a.ids, b.ids).in1 - a.ids.begin();
}

// Divides sorted texts among chunks of `rows` rows, in order. Calls `chunk` with each part.
template <class F>
void divide(Texts texts, int64_t rows, const F& chunk) {
  const int64_t most_targets = TextChunks::kTargetsPerRow * rows;
  size_t begin = 0;
  int64_t used = 0, targets = 0;
  for (size_t t = 0; t < texts.size(); ++t) {
    const auto length = [&](size_t i) { return int64_t(texts[i].ids.size()); };
    // A text shares rows with the text before it up to the first token that differs. A row is a
    // beginning that a token follows, so `same` equal tokens share up to `same` + 1 rows.
    int64_t same = t > begin ? common_tokens(texts[t - 1], texts[t]) : 0,
            shared = t > begin ? std::min(same + 1, length(t - 1)) : 0;
    if (used + length(t) - shared > rows || targets + length(t) - same > most_targets) {
      chunk(texts.subspan(begin, t - begin));
      begin = t;
      used = targets = same = shared = 0;
    }
    used += length(t) - shared;
    targets += length(t) - same;
  }
  if (begin < texts.size()) chunk(texts.subspan(begin));
}

// Returns the rows per chunk with which the texts have the fewest rows in all. Chunks of fewer than
// half of `most` rows would make products slow. A single chunk may have any size.
int64_t fitting_rows(Texts texts, int64_t longest, int64_t most) {
  const int64_t step = most / TextChunks::kSizes;
  int64_t best = most, fewest = -1;
  for (int64_t rows = most; rows >= std::max(longest, step); rows -= step) {
    int64_t chunks = 0;
    divide(texts, rows, [&](Texts) { ++chunks; });
    if (2 * rows < most && chunks > 1) break;
    if (fewest < 0 || chunks * rows < fewest) {
      fewest = chunks * rows;
      best = rows;
    }
  }
  return best;
}

// Makes the rows and targets of sorted texts, position after position.
TextChunks::Chunk chunk_of(Texts texts, int32_t pad_id) {
  TextChunks::Chunk c;
  c.rows.push_back({});
  std::vector<int32_t> row(texts.size(), 0);  // of each text: its row at the position
  std::vector<size_t> left(texts.size());     // texts that have a token at the position
  for (size_t i = 0; i < left.size(); ++i) left[i] = i;
  for (int32_t l = 0; !left.empty(); ++l) {
    std::vector<size_t> longer;
    const auto length = [&](size_t i) { return int32_t(texts[i].ids.size()); };
    int32_t last_row = -1, last_label = -1, parent = -1, parent_label = -1;
    for (size_t i : left) {
      const int32_t at = row[i], label = texts[i].ids[size_t(l)];
      if (label != pad_id) {
        if (at != last_row || label != last_label) {
          const bool more = !c.targets.empty() && c.targets.back().row == at;
          const auto index = int32_t(c.targets.size());
          c.targets.push_back({at, label, more ? c.targets.back().first : index});
        }
        last_row = at;
        last_label = label;
        c.uses.push_back({texts[i].number, int32_t(c.targets.size()) - 1});
      }
      if (length(i) == l + 1) continue;
      longer.push_back(i);
      if (at != parent || label != parent_label) c.rows.push_back({label, l + 1, at});
      parent = at;
      parent_label = label;
      row[i] = int32_t(c.rows.size()) - 1;
    }
    left = std::move(longer);
  }
  return c;
}

}  // namespace

void TextChunks::assign(const TextList& list, int32_t pad_id, int64_t most) {
  CHECK(most % kSizes == 0 && list.length <= most, "texts of {} in chunks of {}", list.length,
        most);
  const std::vector<Text> texts = sorted_texts(list, pad_id);
  depth_ = 1;
  for (const Text& t : texts) depth_ = std::max(depth_, int64_t(t.ids.size()));
  rows_ = fitting_rows(texts, depth_, most);
  chunks_.clear();
  divide(texts, rows_, [&](Texts part) {
    chunks_.push_back(chunk_of(part, pad_id));
    chunks_.back().rows.resize(size_t(rows_));
  });
}

void TextChunks::assign_rows(int64_t count, int64_t rows, int64_t depth) {
  rows_ = rows;
  depth_ = std::min(rows, depth);
  Chunk c{.rows = std::vector<Row>(size_t(rows)), .targets = {}, .uses = {}};
  for (int64_t i = 0; i < rows * kTargetsPerRow; ++i)
    c.targets.push_back({int32_t(i / kTargetsPerRow), 0, int32_t(i - i % kTargetsPerRow)});
  chunks_.assign(size_t(count), c);
}

}  // namespace models
