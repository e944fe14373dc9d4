// SPDX-License-Identifier: Apache-2.0
// Capability of a model that turns images into features: numbers at named taps of its encoder.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/model.hpp"

namespace models {

// A place in a model whose values can be read.
struct Tap {
  std::string name;
  std::vector<int64_t> shape;  // of one image's features: [width] or [tokens, width]
  std::string doc;
  bool whole = false;  // values are whole numbers, such as the number of a cluster

  int64_t count() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
};

// Selects taps by their names, without repetition. Error(Exit::config) with the list of taps for a
// name that is not a tap.
std::vector<Tap> chosen_taps(const std::vector<Tap>& all, const std::vector<std::string>& names);

class EmbedPass : public ForwardPass {
 public:
  // Writes the features at each tap of taps(), in their order: f32 [ctx.batch, shape of the tap] on
  // the host. `features` is ignored on the plan back end.
  virtual void run(nn::Context& ctx, const Inputs& inputs, const std::vector<float*>& features) = 0;
  virtual const std::vector<Tap>& taps() const = 0;
  void plan(nn::Context& ctx, const Inputs& inputs) override { run(ctx, inputs, {}); }
};

class Embedder {
 public:
  virtual ~Embedder() = default;
  // Returns all taps; each name occurs once.
  virtual std::vector<Tap> taps() const = 0;
  // Returns the name of the tap that holds the vector which a head reads.
  virtual std::string feature_tap() const = 0;
  // Makes a pass that reads the named taps, without repetition. Its name lists the taps, because
  // passes with different taps are different passes. Error(Exit::config) for a name that is not a
  // tap.
  virtual std::unique_ptr<EmbedPass> make_embed_pass(
      const std::vector<std::string>& taps) const = 0;
};

}  // namespace models
