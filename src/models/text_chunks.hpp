// SPDX-License-Identifier: Apache-2.0
// Cuts a list of texts into chunks with equal numbers of rows, for products with shapes that are
// known before the texts. A row is one position of a text. Positions after the last token of a text
// are left out, and rows of padding fill each chunk up. Each row of padding is a text of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "models/caption_scorer.hpp"

namespace models {

// The rows and chunks depend on the texts alone, so the shapes of products do as well.
struct TextChunks {
  // A chunk has a multiple of `most` / kSizes rows, at most `most` rows.
  static constexpr int64_t kSizes = 16;

  int64_t rows = 0;  // of each chunk
  // by row, chunk after chunk: the decoder's id and its position; the token to predict; the text
  // that its likelihood belongs to, -1: to none
  std::vector<int32_t> ids, positions, labels, texts;
  // [chunks + 1] first sequence of each chunk, and [sequences + 1] first row of each sequence
  std::vector<int64_t> first_sequence;
  std::vector<int32_t> offsets;

  int64_t count() const { return int64_t(first_sequence.size()) - 1; }
  // `most`: a multiple of kSizes, at least the length of the texts.
  void assign(const TextList& list, int32_t pad_id, int64_t most);
  // Makes `count` chunks of `rows` rows, each row a text of its own, for plans.
  void assign_rows(int64_t count, int64_t rows);

 private:
  void begin();
  void add(const int32_t* text, int64_t tokens, int32_t number, int32_t pad_id);
  void end_chunk();
};

// Returns the number of positions of a text up to its last token.
int64_t rows_of_text(const int32_t* ids, int64_t length, int32_t pad_id);

}  // namespace models
