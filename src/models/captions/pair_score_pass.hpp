// SPDX-License-Identifier: Apache-2.0
// The pass of caption models that scores every image of a batch against a list of texts.
//
// The image is encoded once, and its keys and values of every decoder layer are projected once. The
// decoder then runs on tiles: some chunks of texts (text_chunks.hpp) for all images of the batch.
// Texts that begin alike share the rows of their beginning. The rows of a tile are ordered by image
// and chunk. The part of the first layer that sees no image is computed once for all images of a
// tile.
//
// A product sees one image, or one chunk of one image. Its shape depends on the model and the texts
// alone, and a score has the same bits in every batch.
#pragma once

#include "models/caption_scorer.hpp"
#include "models/decoders/caption_decoder.hpp"
#include "models/decoders/caption_head.hpp"
#include "models/trunks/trunk.hpp"

namespace models {

// The parts of a model that the pass runs. They must outlive it.
struct PairScoreParts {
  const Trunk& encoder;
  ImageGroup images;  // the size of the images
  const CaptionDecoder& decoder;
  const CaptionHead& head;
  HeadConfig head_config;
  int64_t pad_id;
  InputSpec image;  // the model's input of images
};

std::unique_ptr<PairScorePass> make_pair_score_pass(const PairScoreParts& parts);

}  // namespace models
