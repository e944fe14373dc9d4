// SPDX-License-Identifier: Apache-2.0
// Cuts a list of texts into chunks with equal numbers of rows, for products with shapes that are
// known before the texts. Texts of a chunk that begin alike share the rows of their beginning.
#pragma once

#include <cstdint>
#include <vector>

#include "models/caption_scorer.hpp"

namespace models {

// The rows and chunks depend on the texts alone, so the shapes of products do as well.
class TextChunks {
 public:
  // A chunk has a multiple of `most` / kSizes rows, at most `most` rows, and at most
  // kTargetsPerRow targets per row.
  static constexpr int64_t kSizes = 16, kTargetsPerRow = 8;

  // A beginning of texts. `id` is its last token; 0 for the leading token, whatever the pad id.
  // `position` is the position of that token. `parent` is the row of the beginning without that
  // token, -1: none.
  struct Row {
    int32_t id = 0, position = 0, parent = -1;
  };
  // A token that follows a row in some text. `first`: the first target of the same row.
  struct Target {
    int32_t row, label, first;
  };
  // The likelihood of text number `text` includes target number `target`.
  struct Use {
    int32_t text, target;
  };
  struct Chunk {
    std::vector<Row> rows;        // parents before children, then rows of padding
    std::vector<Target> targets;  // by row
    std::vector<Use> uses;        // of each text: by position
  };

  int64_t rows() const { return rows_; }    // of each chunk
  int64_t depth() const { return depth_; }  // rows of the longest text, at most rows()
  int64_t count() const { return int64_t(chunks_.size()); }
  const Chunk& operator[](int64_t i) const { return chunks_[size_t(i)]; }

  // Positions after the last token of a text have no rows. `most`: a multiple of kSizes, at least
  // the length of the texts.
  void assign(const TextList& list, int32_t pad_id, int64_t most);
  // Makes `count` chunks of `rows` rows with as many targets as possible, for plans.
  void assign_rows(int64_t count, int64_t rows, int64_t depth);

 private:
  int64_t rows_ = 0, depth_ = 0;
  std::vector<Chunk> chunks_;
};

}  // namespace models
