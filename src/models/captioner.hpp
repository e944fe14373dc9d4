// SPDX-License-Identifier: Apache-2.0
// Capability of a model that generates captions of images, token by token.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "models/model.hpp"

namespace models {

enum class DecodeMethod { greedy, beam, sample };
inline constexpr std::pair<const char*, DecodeMethod> kDecodeMethodNames[] = {
    {"greedy", DecodeMethod::greedy},
    {"beam", DecodeMethod::beam},
    {"sample", DecodeMethod::sample}};

// Chooses the tokens of a caption. In all methods the smallest id wins among equals.
//   greedy  the most likely token at each position
//   beam    the hypothesis with the best score in a search with `beams` places
//   sample  a token drawn with its probability, after temperature, top_k and top_p in this order
//
// The score of a hypothesis with n tokens, its end included, is its log-likelihood divided by
// ((5 + n) / 6)^length_penalty (Wu et al., arXiv 1609.08144, equation 14). One place always holds
// the tokens that greedy chooses, so the result never has a worse score than greedy's caption.
struct DecodeOptions {
  DecodeMethod method = DecodeMethod::greedy;
  int32_t end_id = 1;      // ends a caption
  int64_t max_length = 0;  // tokens, the end included; 0: as many as the pass can hold
  // beam
  int64_t beams = 4;
  double length_penalty = 0;  // at least 0
  // sample: the draw of a token is a pure function of seed, global position of the image, and step
  double temperature = 1;  // divides the logits; above 0
  int64_t top_k = 0;       // only the k most likely tokens; 0: all
  double top_p = 1;        // only the fewest tokens that together have this probability
  uint64_t seed = 0;
  // Images at global positions below this number get Caption::attention.
  int64_t attention = 0;

  int64_t places() const { return method == DecodeMethod::beam ? beams : 1; }
};

struct Caption {
  std::vector<int32_t> ids;   // without the end
  double log_likelihood = 0;  // nats, of all tokens; includes the end if the caption has one
  bool ended = false;         // false: cut at the largest length
  // [ids, grid height, grid width]: the cross-attention weights of the last decoder layer when it
  // chooses each id, mean over heads. The weights of an id sum to 1. Empty if
  // DecodeOptions::attention does not ask for it.
  std::vector<float> attention{};
};

// The largest sizes of a pass, which fix its memory.
struct CaptionLimits {
  int64_t places = 1;      // hypotheses of an image
  int64_t length = 0;      // tokens of a caption, its end included; 0: the text length of the model
  bool attention = false;  // captions may have Caption::attention
};

class CaptionPass : public ForwardPass {
 public:
  // Writes the captions of the first `examples` images, whose global positions begin at
  // first_position. The other images are padding. All ranks must call it together.
  virtual void run(nn::Context& ctx, const Inputs& inputs, const DecodeOptions& options,
                   int64_t examples, int64_t first_position, std::vector<Caption>& captions) = 0;
  // Returns height and width of the encoder's grid of patches, for Caption::attention.
  virtual std::pair<int64_t, int64_t> grid() const { return {0, 0}; }
};

class Captioner {
 public:
  virtual ~Captioner() = default;
  virtual std::unique_ptr<CaptionPass> make_caption_pass(const CaptionLimits& limits) const = 0;
};

}  // namespace models
