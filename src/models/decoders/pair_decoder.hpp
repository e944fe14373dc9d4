// SPDX-License-Identifier: Apache-2.0
// The caption decoder on a tile: every image of a batch with every text of some chunks.
#pragma once

#include "models/decoders/caption_decoder.hpp"
#include "models/decoders/text_chunks.hpp"

namespace models {

class PairDecoder {
 public:
  explicit PairDecoder(const CaptionDecoder& decoder) : decoder_(decoder) {}

  // Keys and values of a batch of images for one layer: [batch * memory_length, width] each.
  struct Memory {
    View k, v;
  };
  // Chunks [first, first + count) of the texts for all images of the batch.
  struct Tile {
    int64_t first = 0, count = 0;
  };

  // Projects the encoded images [batch * memory_length, memory_width] for all layers. The result
  // lives until the arena is popped.
  void project(nn::Context& ctx, View encoded, std::vector<Memory>& memory) const;
  // Computes the decoder's output before its final norm: x [batch * tile.count * chunks.rows,
  // width]. Rows are ordered by image and chunk.
  void run(nn::Context& ctx, const TextChunks& chunks, Tile tile, const std::vector<Memory>& memory,
           int next_block, View x) const;

 private:
  // The rows of a tile for one image: tables, and the tensors that are equal for all images.
  struct Texts {
    int64_t rows = 0, chunks = 0, depth = 0;
    int64_t images = 0;  // most images of a group
    View prefixes;       // i32 [images * rows, depth]: the rows that a row sees, then -1
    View repeat;         // i32 [images * rows]: i % rows
    View embedded, seen, query;
  };
  // Images [first, first + count), which are computed together.
  struct Group {
    int64_t first = 0, count = 0;
  };
  Texts make_texts(nn::Context& ctx, const TextChunks& chunks, Tile tile) const;
  void embed(nn::Context& ctx, const TextChunks& chunks, Tile tile, View x) const;
  // Computes y = x + self-attention of `copies` copies of the texts.
  void attend_to_text(nn::Context& ctx, const CaptionDecoder::Layer& layer, const Texts& texts,
                      int64_t copies, View x, View y) const;
  void make_query(nn::Context& ctx, const CaptionDecoder::Layer& layer, const Texts& texts,
                  int64_t copies, View y, View query) const;
  // Computes x from y, the sum after self-attention, and its queries for the images.
  void attend_to_images(nn::Context& ctx, const CaptionDecoder::Layer& layer, const Texts& texts,
                        Group group, const Memory& memory, View y, View query, View x) const;
  void first_layer(nn::Context& ctx, const Texts& texts, const Memory& memory, View x) const;

  const CaptionDecoder& decoder_;
};

}  // namespace models
