// SPDX-License-Identifier: Apache-2.0
#include "models/text_chunks.hpp"

#include <algorithm>
#include <numeric>

#include "base/narrow.hpp"

namespace models {
namespace {

// Returns the number of chunks of that many rows, if texts go into them in order.
int64_t chunks_of(const std::vector<int64_t>& text_rows, int64_t rows) {
  int64_t chunks = 0, left = 0;
  for (int64_t n : text_rows) {
    if (n == 0) continue;
    if (n > left) {
      ++chunks;
      left = rows;
    }
    left -= n;
  }
  return chunks;
}

// Returns the smallest size of a chunk with which the texts need no more chunks than with the
// largest one.
int64_t fitting_rows(const std::vector<int64_t>& text_rows, int64_t most) {
  const int64_t step = most / TextChunks::kSizes, fewest = chunks_of(text_rows, most),
                longest = text_rows.empty() ? 0 : *std::ranges::max_element(text_rows);
  int64_t rows = std::max(base::round_up(longest, step), step);
  while (rows < most && chunks_of(text_rows, rows) > fewest) rows += step;
  return rows;
}

}  // namespace

int64_t rows_of_text(const int32_t* ids, int64_t length, int32_t pad_id) {
  while (length > 0 && ids[length - 1] == pad_id) --length;
  return length;
}

void TextChunks::begin() {
  for (std::vector<int32_t>* v : {&ids, &positions, &labels, &texts}) v->clear();
  first_sequence.assign(1, 0);
  offsets.assign(1, 0);
}

void TextChunks::add(const int32_t* text, int64_t tokens, int32_t number, int32_t pad_id) {
  for (int64_t l = 0; l < tokens; ++l) {
    ids.push_back(l ? text[l - 1] : 0);  // the leading token is id 0 for every pad id
    positions.push_back(int32_t(l));
    labels.push_back(text[l]);
    texts.push_back(text[l] == pad_id ? -1 : number);
  }
  offsets.push_back(int32_t(ids.size()));
}

void TextChunks::end_chunk() {
  const int32_t nothing = 0;
  while (int64_t(ids.size()) % rows) add(&nothing, 1, -1, -1);
  first_sequence.push_back(int64_t(offsets.size()) - 1);
}

void TextChunks::assign(const TextList& list, int32_t pad_id, int64_t most) {
  CHECK(most % kSizes == 0 && list.length <= most, "texts of {} in chunks of {}", list.length,
        most);
  std::vector<int64_t> text_rows;
  for (int64_t t = 0; t < list.count(); ++t)
    text_rows.push_back(rows_of_text(list.ids.data() + t * list.length, list.length, pad_id));
  rows = fitting_rows(text_rows, most);
  begin();
  for (int64_t t = 0; t < list.count(); ++t) {
    const int64_t tokens = text_rows[size_t(t)], used = int64_t(ids.size()) % rows;
    if (tokens == 0) continue;
    if (used && used + tokens > rows) end_chunk();
    add(list.ids.data() + t * list.length, tokens, int32_t(t), pad_id);
    if (int64_t(ids.size()) % rows == 0) end_chunk();
  }
  if (int64_t(ids.size()) % rows) end_chunk();
}

void TextChunks::assign_rows(int64_t chunks, int64_t chunk_rows) {
  rows = chunk_rows;
  begin();
  const int32_t nothing = 0;
  for (int64_t i = 0; i < chunks; ++i) {
    for (int64_t r = 0; r < rows; ++r) add(&nothing, 1, -1, -1);
    end_chunk();
  }
}

}  // namespace models
