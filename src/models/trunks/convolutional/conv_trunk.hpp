// SPDX-License-Identifier: Apache-2.0
// A convolutional trunk: a stem and a chain of layers in stages. Its tokens are the positions of
// the last map. A kind of trunk declares what a stem and a layer are, and adds them.
//
// ConvTrunk alone acquires, prefetches and releases the blocks' weights, and opens and closes their
// gradients. It places the outputs, computes again what was not kept, reads taps and counts FLOPs.
// Forward keeps the outputs of stages, and what layers save. Before the backward pass of a stage,
// the outputs of its layers are computed again from what these saved. With recompute = "block" it
// keeps the outputs of all layers instead, and layers repeat their forward pass.
//
// Several sizes of images run block by block, so that a block's weights are acquired once. In the
// backward pass they go through a layer together, op by op: the gradients of weights are sums over
// slices, and within a slice over all sizes.
#pragma once

#include <algorithm>
#include <array>
#include <optional>

#include "kernels/scale_pixels.hpp"
#include "models/block_scope.hpp"
#include "models/trunks/trunk.hpp"
#include "nn/batch_norm.hpp"
#include "nn/convolution.hpp"

namespace models {

// Holds the activations of a layer that backward reads, for the images of one size.
template <class Saved>
struct ConvKept {
  nn::ImageSize size, out;  // of x and y
  View x, y;
  Saved saved;
};

// Returns the positions of all images of a pass.
inline int64_t positions_of(const nn::Context& ctx, const nn::ImageSize& size) {
  return ctx.batch * size.pixels();
}

// The gradient of a layer's output, for the images of one size: the sum of two parts. The parts are
// stored in two buffers, which layers with equal sizes use in turn.
struct MapGradient {
  View d, add;  // add may be none
  std::array<View, 2> buffers;
  bool second = false;  // d is stored in buffers[1]
  View image;           // optional: the stem writes the gradient of the images

  View& own() { return buffers[second]; }
  View& other() { return buffers[!second]; }
  // Makes buffers for `count` elements, if the present ones are too small.
  void fit(nn::Context& ctx, int64_t count, device::DType type) {
    if (buffers[0].count >= count) return;
    for (View& v : buffers) v = ctx.make(false, count, type);
  }
};

// Hands maps of a group of images to the reader of taps.
struct MapReader {
  const Trunk::Pass& pass;
  int64_t group;
  void operator()(const std::string& tap, const nn::ImageSize& size, int64_t channels,
                  View values) const {
    if (!pass.wants(tap)) return;
    pass.read_tap({.tap = tap,
                   .group = group,
                   .images = values.count / (size.height * size.width * channels),
                   .grid_height = size.height,
                   .grid_width = size.width,
                   .channels = channels,
                   .values = values});
  }
};

// Stem and Layer have
//   Saved                             what backward reads of the images of one size
//   int64_t channels()                of the output
//   ImageSize output_size(ImageSize)
//   int64_t flops(ImageSize)          of all products of an example's images
//   make_saved(ctx, kept)             allocates what is saved whatever is computed again
//   forward(ctx, kept, save, call, read)  computes kept.y; `save`: what backward reads outlives it
//   again(ctx, kept)                  repeats what backward reads (Recompute::block)
//   backward(ctx, all, gradients)     computes all gradients, by size of images
// and Layer also
//   place(ctx, group, kept)           copies the host's tables for a group of images
//   static DType map_type(ctx)        of all outputs and their gradients
//   make_output_saved(ctx, kept)      allocates what only output_again reads
//   output_again(ctx, kept)           computes kept.y from x and what was saved
template <class Stem, class Layer>
class ConvTrunk : public Trunk {
 public:
  template <class L>
  struct Made {
    device::Arena::Mark mark{};  // position in the arena before the block saved anything
    std::vector<ConvKept<typename L::Saved>> groups;
  };
  struct ConvPass : Pass {
    std::vector<ImageGroup> images;
    Made<Stem> stem;
    std::vector<Made<Layer>> layers;
    std::vector<MapGradient> gradients;  // by group; initially of the tokens
    device::Arena::Mark start{};
    // Tests ask for the gradient of images: views of the activations' type, by group.
    std::vector<View> image_gradients;
  };

  std::unique_ptr<Pass> make_pass() const override { return std::make_unique<ConvPass>(); }
  void place(nn::Context& ctx, std::span<const ImageGroup> groups, Pass& pass) const override {
    auto& p = dynamic_cast<ConvPass&>(pass);
    p.start = ctx.arena.low();
    size_tokens(groups, p);
    p.layers.assign(layers_.size(), {});
    for (size_t i = 0; i < layers_.size(); ++i) {
      p.layers[i].groups.assign(groups.size(), {});
      for (size_t g = 0; g < groups.size(); ++g) {
        auto& kept = p.layers[i].groups[g];
        kept.size = i == 0 ? stem_.output_size(size_of(groups[g])) : p.layers[i - 1].groups[g].out;
        kept.out = layers_[i].layer.output_size(kept.size);
        layers_[i].layer.place(ctx, int64_t(g), kept);
      }
    }
  }
  const Tokens& forward(nn::Context& ctx, std::span<const ImageGroup> groups, int next_block,
                        Pass& pass) const override;
  const Tokens& make_gradient(nn::Context& ctx, Pass& pass) const override;
  void backward(nn::Context& ctx, Pass& pass) const override;

  bool reads_images_again() const override { return true; }
  int64_t width() const override { return layers_.back().layer.channels(); }
  TokenGrid grid(int64_t height, int64_t width) const override {
    nn::ImageSize size = stem_.output_size({1, height, width});
    for (const Entry& e : layers_) size = e.layer.output_size(size);
    return {.height = size.height, .width = size.width};
  }
  int first_block() const override { return stem_block_; }
  int last_block() const override { return layers_.back().block; }
  // Returns the taps of the outputs of stem and stages.
  std::vector<Tap> taps(int64_t height, int64_t width) const override;
  void take_bytes(const kernels::PixelRange& range) override { bytes_ = range; }
  int64_t forward_flops(std::span<const ImageGroup> groups) const override;
  int64_t input_flops(std::span<const ImageGroup> groups) const override {
    int64_t flops = 0;
    for (const ImageGroup& g : groups) flops += stem_.flops(size_of(g));
    return flops;
  }

 protected:
  struct MapTap {
    std::string name, doc;
  };
  explicit ConvTrunk(Recompute recompute) : recompute_(recompute) {}
  void set_stem(int block, Stem stem, MapTap tap) {
    stem_block_ = block;
    stem_ = std::move(stem);
    stem_tap_ = std::move(tap);
  }
  // keep: the output is saved and never computed again.
  void add(int block, int stage, Layer layer, bool keep = false) {
    layers_.push_back({std::move(layer), block, stage, keep, {}});
  }
  // The latest layer is the last one of its stage.
  void end_stage(MapTap tap) {
    layers_.back().keep = true;
    layers_.back().tap = std::move(tap);
  }
  const Stem& stem() const { return stem_; }

 private:
  struct Entry {
    Layer layer;
    int block, stage;
    bool keep;
    std::optional<MapTap> tap;  // of the last layer of a stage
  };
  using Spare = std::vector<std::array<View, 2>>;  // by group

  static nn::ImageSize size_of(const ImageGroup& g) { return {g.per_example, g.height, g.width}; }
  bool keeps_output(const Entry& e) const { return e.keep || recompute_ == Recompute::block; }
  View pixels(nn::Context& ctx, View images) const;
  Spare spare_outputs(nn::Context& ctx, std::span<const ImageGroup> groups, int stage) const;
  template <class L>
  void make_kept(nn::Context& ctx, const L& layer, bool keep, View spare,
                 ConvKept<typename L::Saved>& kept) const;
  void forward_stem(nn::Context& ctx, const Spare& spare, bool save, ConvPass& pass) const;
  void forward_layer(nn::Context& ctx, size_t number, const Spare& spare, bool save,
                     ConvPass& pass) const;
  void outputs_again(nn::Context& ctx, size_t begin, size_t end, ConvPass& pass) const;
  void backward_stem(nn::Context& ctx, ConvPass& pass) const;
  template <class L>
  void backward_layer(nn::Context& ctx, const L& layer,
                      std::vector<ConvKept<typename L::Saved>>& all,
                      std::vector<MapGradient>& gradients) const {
    device::Arena::Scope scope(ctx.arena);
    if (recompute_ == Recompute::block)
      for (auto& kept : all) layer.again(ctx, kept);
    layer.backward(ctx, all, gradients);
  }

  Recompute recompute_;
  kernels::PixelRange bytes_{};
  int stem_block_ = 0;
  Stem stem_;
  MapTap stem_tap_;
  std::vector<Entry> layers_;
};

// ---------------------------------------------------------------- sizes

template <class Stem, class Layer>
std::vector<Tap> ConvTrunk<Stem, Layer>::taps(int64_t height, int64_t width) const {
  nn::ImageSize size = stem_.output_size({1, height, width});
  std::vector<Tap> out;
  auto add = [&](const MapTap& tap, int64_t channels) {
    out.push_back({tap.name, {size.height, size.width, channels}, tap.doc});
  };
  add(stem_tap_, stem_.channels());
  for (const Entry& e : layers_) {
    size = e.layer.output_size(size);
    if (e.tap) add(*e.tap, e.layer.channels());
  }
  return out;
}

template <class Stem, class Layer>
int64_t ConvTrunk<Stem, Layer>::forward_flops(std::span<const ImageGroup> groups) const {
  int64_t flops = input_flops(groups);
  for (const ImageGroup& g : groups) {
    nn::ImageSize size = stem_.output_size(size_of(g));
    for (const Entry& e : layers_) {
      flops += e.layer.flops(size);
      size = e.layer.output_size(size);
    }
  }
  return flops;
}

// ---------------------------------------------------------------- forward

// Returns images as the stem's convolution reads them.
template <class Stem, class Layer>
View ConvTrunk<Stem, Layer>::pixels(nn::Context& ctx, View images) const {
  if (images.type == ctx.activation()) return images;
  const View y = ctx.make_activation(false, images.count);
  ctx.run(kernels::ScalePixels{.y = y, .x = images, .range = bytes_});
  return y;
}

// Allocates the outputs of layers that are not kept: two buffers in turn for each group, because a
// layer reads one and writes the other. They serve one stage if a backward pass follows, otherwise
// all stages.
template <class Stem, class Layer>
typename ConvTrunk<Stem, Layer>::Spare ConvTrunk<Stem, Layer>::spare_outputs(
    nn::Context& ctx, std::span<const ImageGroup> groups, int stage) const {
  Spare spare(groups.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    nn::ImageSize size = stem_.output_size(size_of(groups[g]));
    int64_t largest = ctx.keep ? 0 : size.pixels() * stem_.channels();
    for (const Entry& e : layers_) {
      size = e.layer.output_size(size);
      if (!ctx.keep || (e.stage == stage && !keeps_output(e)))
        largest = std::max(largest, size.pixels() * e.layer.channels());
    }
    for (View& v : spare[g]) v = ctx.make(!ctx.keep, ctx.batch * largest, Layer::map_type(ctx));
  }
  return spare;
}

// Prepares `kept` for the images of one size; kept.x and kept.size are set.
template <class Stem, class Layer>
template <class L>
void ConvTrunk<Stem, Layer>::make_kept(nn::Context& ctx, const L& layer, bool keep, View spare,
                                       ConvKept<typename L::Saved>& kept) const {
  kept.out = layer.output_size(kept.size);
  layer.make_saved(ctx, kept);
  const int64_t elements = ctx.batch * kept.out.pixels() * layer.channels();
  kept.y =
      ctx.keep && keep ? ctx.make(true, elements, Layer::map_type(ctx)) : spare.slice(0, elements);
}

template <class Stem, class Layer>
void ConvTrunk<Stem, Layer>::forward_stem(nn::Context& ctx, const Spare& spare, bool save,
                                          ConvPass& pass) const {
  ForwardBlock weights(ctx, stem_block_, layers_.front().block);
  const size_t count = pass.images.size();
  pass.stem.mark = ctx.arena.low();
  pass.stem.groups.assign(count, {});
  for (size_t g = 0; g < count; ++g) {
    pass.stem.groups[g].size = size_of(pass.images[g]);
    make_kept(ctx, stem_, true, ctx.keep ? View{} : spare[g][0], pass.stem.groups[g]);
  }
  for (size_t g = 0; g < count; ++g) {
    device::Arena::Scope scope(ctx.arena);
    auto& kept = pass.stem.groups[g];
    const MapReader read{pass, int64_t(g)};
    kept.x = pixels(ctx, pass.images[g].images);
    stem_.forward(ctx, kept, save, {int64_t(g), int64_t(count)}, read);
    read(stem_tap_.name, kept.out, stem_.channels(), kept.y);
  }
}

template <class Stem, class Layer>
void ConvTrunk<Stem, Layer>::forward_layer(nn::Context& ctx, size_t number, const Spare& spare,
                                           bool save, ConvPass& pass) const {
  const Entry& e = layers_[number];
  const size_t count = pass.images.size();
  Made<Layer>& made = pass.layers[number];
  made.mark = ctx.arena.low();
  for (size_t g = 0; g < count; ++g) {
    auto& kept = made.groups[g];
    kept.x = number == 0 ? pass.stem.groups[g].y : pass.layers[number - 1].groups[g].y;
    make_kept(ctx, e.layer, keeps_output(e), spare[g][(number + 1) % 2], kept);
    if (ctx.keep && !keeps_output(e)) e.layer.make_output_saved(ctx, kept);
  }
  for (size_t g = 0; g < count; ++g) {
    auto& kept = made.groups[g];
    const MapReader read{pass, int64_t(g)};
    e.layer.forward(ctx, kept, save, {int64_t(g), int64_t(count)}, read);
    if (ctx.watch) ctx.watch->block_done(e.block, kept.y);
    if (e.tap) read(e.tap->name, kept.out, e.layer.channels(), kept.y);
  }
}

template <class Stem, class Layer>
const Tokens& ConvTrunk<Stem, Layer>::forward(nn::Context& ctx, std::span<const ImageGroup> groups,
                                              int next_block, Pass& pass) const {
  auto& p = dynamic_cast<ConvPass&>(pass);
  p.images.assign(groups.begin(), groups.end());
  const bool save = ctx.keep && recompute_ != Recompute::block;
  Spare spare = ctx.keep ? Spare() : spare_outputs(ctx, groups, 0);
  std::optional<device::Arena::Scope> stage;  // of the spare buffers
  forward_stem(ctx, spare, save, p);
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (ctx.keep && (i == 0 || layers_[i - 1].stage != layers_[i].stage)) {
      stage.reset();
      stage.emplace(ctx.arena);
      spare = spare_outputs(ctx, groups, layers_[i].stage);
    }
    ForwardBlock weights(ctx, layers_[i].block,
                         i + 1 < layers_.size() ? layers_[i + 1].block : next_block);
    forward_layer(ctx, i, spare, save, p);
  }
  for (size_t g = 0; g < groups.size(); ++g)
    p.tokens.groups[g].values = p.layers.back().groups[g].y;
  return p.tokens;
}

// ---------------------------------------------------------------- backward

template <class Stem, class Layer>
const Tokens& ConvTrunk<Stem, Layer>::make_gradient(nn::Context& ctx, Pass& pass) const {
  auto& p = dynamic_cast<ConvPass&>(pass);
  p.gradient = p.tokens;
  p.gradients.assign(p.images.size(), {});
  for (size_t g = 0; g < p.images.size(); ++g) {
    MapGradient& of = p.gradients[g];
    View& values = p.gradient.groups[g].values;
    of.fit(ctx, values.count, Layer::map_type(ctx));
    values = of.d = of.own().slice(0, values.count);
  }
  return p.gradient;
}

// Computes the outputs of layers [begin, end) of a stage again that were not kept.
template <class Stem, class Layer>
void ConvTrunk<Stem, Layer>::outputs_again(nn::Context& ctx, size_t begin, size_t end,
                                           ConvPass& pass) const {
  for (size_t i = begin; i < end; ++i) {
    if (keeps_output(layers_[i])) continue;
    for (size_t g = 0; g < pass.images.size(); ++g) {
      auto& kept = pass.layers[i].groups[g];
      kept.y = ctx.make(false, kept.y.count, Layer::map_type(ctx));
      layers_[i].layer.output_again(ctx, kept);
      pass.layers[i + 1].groups[g].x = kept.y;
    }
  }
}

template <class Stem, class Layer>
void ConvTrunk<Stem, Layer>::backward_stem(nn::Context& ctx, ConvPass& pass) const {
  device::Arena::Scope scope(ctx.arena);
  for (size_t g = 0; g < pass.images.size(); ++g) {
    pass.stem.groups[g].x = pixels(ctx, pass.images[g].images);
    if (g < pass.image_gradients.size()) pass.gradients[g].image = pass.image_gradients[g];
  }
  backward_layer(ctx, stem_, pass.stem.groups, pass.gradients);
}

template <class Stem, class Layer>
void ConvTrunk<Stem, Layer>::backward(nn::Context& ctx, Pass& pass) const {
  auto& p = dynamic_cast<ConvPass&>(pass);
  device::Arena::Scope scope(ctx.arena);
  for (size_t end = layers_.size(); end > 0;) {
    size_t begin = end - 1;
    while (begin > 0 && layers_[begin - 1].stage == layers_[end - 1].stage) --begin;
    for (size_t g = 0; g < p.images.size(); ++g)
      for (size_t i = begin; i < end; ++i)
        p.gradients[g].fit(ctx, p.layers[i].groups[g].x.count, Layer::map_type(ctx));
    device::Arena::Scope stage(ctx.arena);
    outputs_again(ctx, begin, end, p);
    for (; end > begin; --end) {
      const size_t i = end - 1;
      backward_block(ctx, layers_[i].block, i ? layers_[i - 1].block : stem_block_, [&] {
        backward_layer(ctx, layers_[i].layer, p.layers[i].groups, p.gradients);
      });
      ctx.arena.pop_low(p.layers[i].mark);
    }
  }
  backward_block(ctx, stem_block_, -1, [&] { backward_stem(ctx, p); });
  ctx.arena.pop_low(p.start);
}

}  // namespace models
