// SPDX-License-Identifier: Apache-2.0
// A trunk: the part of a model that turns images into tokens (tokens.hpp). Models own one and know
// no kind of trunk. Kinds are `convnext`, `resnet` and `vit`, a header each.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/embedder.hpp"
#include "models/model.hpp"
#include "models/parameter_list.hpp"
#include "models/tokens.hpp"
#include "models/trunks/pooling.hpp"

namespace models {

class Trunk {
 public:
  // The values of a tap in a forward pass: [examples, per_example of the group, grid_height,
  // grid_width, channels], f32 or of the activations' type. The grid of a vector is 1 x 1, the grid
  // of tokens 1 x tokens.
  struct TapValues {
    std::string tap;
    int64_t group;  // number of the group of images
    int64_t images, grid_height, grid_width, channels;
    View values;  // lost when the call returns
  };
  // The state of one pass, from place() to the end of its backward pass.
  struct Pass {
    virtual ~Pass() = default;
    Tokens tokens;    // place() sets the sizes, forward() the values
    Tokens gradient;  // of the tokens, from make_gradient() on
    // Called in forward for each of these taps and each group, in network order.
    std::function<void(const TapValues&)> read_tap;
    std::vector<std::string> taps;

    bool wants(const std::string& tap) const {
      return read_tap && std::find(taps.begin(), taps.end(), tap) != taps.end();
    }
  };

  virtual ~Trunk() = default;
  virtual std::unique_ptr<Pass> make_pass() const = 0;

  // Copies the host's tables to where ops read them, until the arena is popped. `groups` must be
  // the same as in forward(), but have no images yet.
  virtual void place(nn::Context& ctx, std::span<const ImageGroup> groups, Pass& pass) const = 0;
  // Returns pass.tokens, whose values are f32 or of the activations' type, in the arena.
  // next_block: the block whose weights the last block gathers ahead; -1: none. With ctx.train,
  // batch norms use the statistics of the batch, otherwise running ones. ctx.keep: backward
  // follows.
  virtual const Tokens& forward(nn::Context& ctx, std::span<const ImageGroup> groups,
                                int next_block, Pass& pass) const = 0;
  // Places pass.gradient as temporaries, which the caller overwrites, f32 or of the activations'
  // type. Returns it.
  virtual const Tokens& make_gradient(nn::Context& ctx, Pass& pass) const = 0;
  // Takes pass.gradient, which is used as workspace. Computes the gradients of all parameters and
  // pops the arena to where place or forward began. Gradients of all groups are added slice by
  // slice.
  virtual void backward(nn::Context& ctx, Pass& pass) const = 0;

  // True if backward reads the images, which must then stay in memory until its end.
  virtual bool reads_images_again() const { return false; }

  virtual int64_t width() const = 0;  // of a token
  // Returns the tokens of an image of that size.
  virtual TokenGrid grid(int64_t height, int64_t width) const = 0;
  virtual int first_block() const = 0;
  virtual int last_block() const = 0;
  // Returns all taps in network order, with their shapes for images of that size: [width],
  // [tokens, width] or [height, width, channels].
  virtual std::vector<Tap> taps(int64_t height, int64_t width) const = 0;
  // Returns the taps of the pooling's results, which forward does not read. A head reads the last
  // one.
  virtual std::vector<std::string> pooled_taps() const = 0;

  // Switches images to bytes; `range` maps each byte to its value.
  virtual void take_bytes(const kernels::PixelRange& range) = 0;
  // Model::trunk_weights and Model::changing_arguments of the trunk.
  virtual TrunkWeights weights() const = 0;
  virtual std::string changing_arguments() const { return ""; }
  // Returns the FLOPs of an example with these groups of views: all products, and the first one.
  virtual int64_t forward_flops(std::span<const ImageGroup> groups) const = 0;
  virtual int64_t input_flops(std::span<const ImageGroup> groups) const = 0;

 protected:
  // Sets the sizes of pass.tokens for these images. Reuses the vector, because a step must not
  // allocate.
  void size_tokens(std::span<const ImageGroup> groups, Pass& pass) const;
};

// The keys of a kind of trunk.
struct TrunkKeys : config::Table::Variant {
  // Returns the problem of images of that size, or "".
  virtual std::string image_problem(int64_t /*height*/, int64_t /*width*/) const { return ""; }
  // Declares the trunk's parameters in `list`: a ResNet's below "trunk/" with torchvision's names,
  // a ViT's below "encoder/" with big_vision's. height, width: size of the images of group 0.
  virtual std::unique_ptr<Trunk> make(int64_t height, int64_t width, Recompute recompute,
                                      ParameterList& list) const = 0;
  // Returns the problem of a model that reads the tokens themselves, or "".
  virtual std::string token_problem() const { return ""; }
  // Returns how tokens become one vector, for models that read vectors.
  virtual PoolingConfig pooling() const = 0;
};

// [model] trunk: the trunk's kind and its own keys.
struct TrunkOptions {
  std::string kind;
  std::shared_ptr<config::Table::Variant> options;
  void bind(config::Table& t);
  const TrunkKeys& keys() const { return dynamic_cast<const TrunkKeys&>(*options); }
};

// Binds model.image_size: height and width of images of one size.
void bind_image_size(config::Table& t, int64_t& size);

// Returns the taps of all kinds of trunks, for help.
std::string taps_doc();

}  // namespace models
