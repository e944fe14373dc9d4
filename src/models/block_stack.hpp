// SPDX-License-Identifier: Apache-2.0
// A chain of blocks of one kind, run forward and backward with one block's weights at a time.
//
// BlockStack alone acquires, prefetches and releases the blocks' weights, and opens and closes
// their gradients. It places the outputs, computes a block again if its activations were not kept,
// and frees their memory.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "models/block_scope.hpp"
#include "models/model.hpp"
#include "nn/layers.hpp"

namespace models {

// Allocates the outputs of the blocks of a forward pass. All are kept if a backward pass follows.
// Otherwise two buffers alternate, because a block reads one and writes the other.
class Outputs {
 public:
  Outputs(nn::Context& ctx, int64_t largest) : ctx_(ctx) {
    if (ctx.keep) return;
    for (View& v : spare_) v = ctx.arena.save(largest);
  }
  View make(int64_t count) {
    if (ctx_.keep) return ctx_.arena.save(count);
    turn_ ^= 1;
    return spare_[turn_].slice(0, count);
  }

 private:
  nn::Context& ctx_;
  View spare_[2];
  int turn_ = 0;
};

// Layer: the layers of one block, with a struct `Saved` of the tensors that backward needs.
template <class Layer>
class BlockStack {
 public:
  struct Kept {
    device::Arena::Mark mark{};  // position in the arena before the block saved anything
    View x;                      // the block's input
    typename Layer::Saved saved;
  };
  using Pass = std::vector<Kept>;  // by block

  explicit BlockStack(Recompute recompute) : recompute_(recompute) {}
  void add(int block, Layer layer) {
    blocks_.push_back(block);
    layers_.push_back(std::move(layer));
  }
  int first_block() const { return blocks_.front(); }
  int last_block() const { return blocks_.back(); }
  bool is_last(const Layer& layer) const { return &layer == &layers_.back(); }
  // For passes that run the layers in an order of their own.
  size_t size() const { return layers_.size(); }
  const Layer& layer(size_t i) const { return layers_[i]; }
  int block(size_t i) const { return blocks_[i]; }

  // Runs all blocks on x and returns the last one's output. next: the block whose weights the last
  // block gathers ahead.
  //   count(layer)                number of elements of the layer's output
  //   run(layer, kept, y, save)   computes y from kept.x; `save`: kept.saved must outlive the block
  template <class Count, class Run>
  View forward(nn::Context& ctx, Outputs& outputs, View x, int next, Pass& pass, Count count,
               Run run) const {
    pass.resize(layers_.size());
    for (size_t i = 0; i < layers_.size(); ++i) {
      ForwardBlock weights(ctx, blocks_[i], i + 1 < layers_.size() ? blocks_[i + 1] : next);
      device::Arena::Scope scope(ctx.arena);
      pass[i].mark = ctx.arena.low();
      pass[i].x = x;
      View y = outputs.make(count(layers_[i]));
      run(layers_[i], pass[i], y, ctx.keep && recompute_ != Recompute::block);
      if (ctx.watch) ctx.watch->block_done(blocks_[i], y);
      x = y;
    }
    return x;
  }

  // Runs all blocks backward, the last one first. before: the block before the chain.
  //   again(layer, kept)   repeats the layer's forward pass without its output (Recompute::block)
  //   run(layer, kept)     computes the layer's gradients
  template <class Again, class Run>
  void backward(nn::Context& ctx, int before, Pass& pass, Again again, Run run) const {
    for (size_t i = layers_.size(); i-- > 0;) {
      backward_block(ctx, blocks_[i], i ? blocks_[i - 1] : before, [&] {
        device::Arena::Scope scope(ctx.arena);
        if (recompute_ == Recompute::block) again(layers_[i], pass[i]);
        run(layers_[i], pass[i]);
      });
      ctx.arena.pop_low(pass[i].mark);
    }
  }

  // Allocates the hidden layer of an MLP: saved or temporary, as the policy says.
  nn::Mlp::Saved make_saved(nn::Context& ctx, const nn::Mlp& mlp, bool save, nn::Rows rows) const {
    if (!ctx.keep) return mlp.make_unsaved(ctx, rows);
    return mlp.make_saved(ctx, save && recompute_ < Recompute::mlp,
                          save && recompute_ == Recompute::none, rows);
  }
  // Computes again the part of the hidden layer that the policy did not keep.
  void make_again(nn::Context& ctx, const nn::Mlp& mlp, View x, nn::Rows rows,
                  nn::Mlp::Saved& saved) const {
    if (recompute_ == Recompute::gelu) {
      saved.after_gelu = ctx.make_activation(false, rows.count * mlp.hidden.out);
      mlp.activate(ctx, rows, saved);
    }
    if (recompute_ == Recompute::mlp) {
      saved = mlp.make_saved(ctx, false, false, rows);
      mlp.forward_hidden(ctx, x, rows, saved);
    }
  }

 private:
  Recompute recompute_;
  std::vector<int> blocks_;  // by layer: number of its block
  std::vector<Layer> layers_;
};

}  // namespace models
