// SPDX-License-Identifier: Apache-2.0
// Cuts of an embedding's gradient for CUDA: sizes and places of the tables that its kernels fill.
// The rows of one id are a segment. A segment is summed in pieces of kPieceRows rows, so that many
// warps share the mask token, which three rows in four may have. The sum of a segment depends on
// its own rows alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/error.hpp"
#include "base/narrow.hpp"

namespace kernels {

struct EmbeddingPlan {
  static constexpr int kTileRows = 1024;  // rows that one block ranks by id
  static constexpr int kPieceRows = 64;

  int64_t rows, vocabulary, width;

  EmbeddingPlan(int64_t rows_, int64_t vocabulary_, int64_t width_)
      : rows(rows_), vocabulary(vocabulary_), width(width_) {
    CHECK(rows <= INT32_MAX && vocabulary <= INT32_MAX,
          "embedding_backward: {} rows or {} ids exceed 2^31 - 1", rows, vocabulary);
  }
  int64_t tiles() const { return base::ceil_div(rows, kTileRows); }
  // Limit of the number of pieces. All pieces of a segment but the last are full, and there are at
  // most as many segments as rows, and as ids.
  int64_t most_pieces() const { return std::min(rows, rows / kPieceRows + vocabulary); }
  // Limits of the number of long segments, which have more than one piece, and of their pieces.
  int64_t most_long() const { return rows / (kPieceRows + 1); }
  int64_t most_long_pieces() const { return rows / kPieceRows + most_long(); }

  // Places of the tables, in units of int32. The tables of int32 come first, one after another.
  // Then come the sums of the pieces of long segments, f32 [most_long_pieces][width].
  int64_t counts() const { return 0; }  // [tile][id]: rows of the id in the tile, then before it
  int64_t segment_rows() const { return counts() + tiles() * vocabulary; }  // [id]
  // [id]: its place in `order`
  int64_t segment_begin() const { return segment_rows() + vocabulary; }
  int64_t piece_begin() const { return segment_begin() + vocabulary; }  // [id]: its first piece
  // [id]: its first piece, counted in long segments only
  int64_t part_begin() const { return piece_begin() + vocabulary; }
  // [row]: rows of the same id before it in the tile
  int64_t ranks() const { return part_begin() + vocabulary; }
  // rows sorted by id, and in row order within an id
  int64_t order() const { return ranks() + rows; }
  int64_t piece_ids() const { return order() + rows; }  // [piece]
  // [piece]: 0, 1, ... within the segment
  int64_t piece_numbers() const { return piece_ids() + most_pieces(); }
  int64_t long_ids() const { return piece_numbers() + most_pieces(); }  // ids of long segments
  int64_t totals() const { return long_ids() + most_long(); }           // pieces, long segments
  int64_t sums() const { return base::round_up(totals() + 2, 4); }
  int64_t bytes() const { return 4 * (sums() + most_long_pieces() * width); }
};

}  // namespace kernels
