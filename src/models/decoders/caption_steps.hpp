// SPDX-License-Identifier: Apache-2.0
// The caption decoder, one position of the text at a time. Keys and values of earlier positions and
// of the image stay in caches, so a step computes one row per sequence (cappa.md 2.2).
//
// The weights of all decoder blocks are read at the beginning and held. Weights that must be
// gathered are copied. So steps exchange nothing, and ranks may take different numbers of steps.
//
// Every op of a step computes each row independently (RowProduct), so the logits of a sequence do
// not depend on the other sequences.
#pragma once

#include <vector>

#include "models/decoders/caption_decoder.hpp"
#include "models/decoders/caption_head.hpp"

namespace models {

class CaptionSteps {
 public:
  CaptionSteps(const CaptionDecoder& decoder, const CaptionHead& head)
      : decoder_(decoder), head_(head) {}

  // The cache of one layer. Row t * slots + r holds row r of step t.
  struct Cache {
    View k, v;              // [length * slots, width]
    View image_k, image_v;  // [batch * memory_length, width]
  };
  // Acquires the weights, computes keys and values of the encoded images [batch * memory_length,
  // memory_width], and makes caches for `length` steps of at most `slots` rows. All of it lives
  // until the arena is popped.
  void begin(nn::Context& ctx, View encoded, int64_t slots, int64_t length);

  // The rows of one step; the tables are on the host.
  struct Rows {
    std::vector<int32_t> ids;     // [rows]: the token before the position; 0 before the first
    std::vector<int32_t> images;  // [rows]: number of the row's image in the batch
    // [rows, step + 1]: cache rows of the positions of the row's sequence. The last one belongs to
    // this step.
    std::vector<int32_t> past;
  };
  // Writes the logits [rows, vocabulary] of position `step`. cross_queries, if given, gets the
  // queries [rows, width] of the last layer's cross-attention.
  void step(nn::Context& ctx, int64_t step, const Rows& rows, View logits, View cross_queries = {});

  const Cache& cache(size_t layer) const { return layers_[layer].cache; }
  const Cache& last_cache() const { return layers_.back().cache; }
  int64_t vocabulary() const { return head_.head_.out; }

 private:
  struct Norm {
    View scale, bias;
  };
  struct Product {
    View kernel, bias;
    int64_t in = 0, out = 0;
  };
  struct Layer {
    int64_t heads = 1;
    Norm norm1, norm2, norm3;
    Product query, key, value, output, cross_query, cross_output, hidden, mlp_output;
    Cache cache;
  };
  // Copies a view of a weight, if acquire gathers its block.
  View held(nn::Context& ctx, int block, View weight) const;
  Norm held(nn::Context& ctx, int block, const nn::LayerNorm& norm) const;
  // `narrow`: the product writes an activation, and its bias has the activations' type.
  Product held(nn::Context& ctx, int block, const nn::Linear& linear, bool narrow) const;
  void hold_layer(nn::Context& ctx, int block, const CaptionDecoder::Layer& from, View encoded,
                  int64_t rows, Layer& to) const;
  View normed(nn::Context& ctx, const Norm& norm, View x, int64_t rows) const;
  void run(nn::Context& ctx, const Product& product, View x, View y, int64_t rows,
           View residual = {}) const;
  void run_layer(nn::Context& ctx, const Layer& layer, int64_t step, int64_t rows, View x,
                 View past, View first, View cross_queries) const;

  const CaptionDecoder& decoder_;
  const CaptionHead& head_;
  int64_t slots_ = 0, length_ = 0, batch_ = 0;
  View table_, positions_;
  std::vector<Layer> layers_;
  Norm norm_;
  Product head_product_;
  std::vector<int32_t> first_;  // by row: first cache row of its image
};

}  // namespace models
