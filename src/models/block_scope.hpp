// SPDX-License-Identifier: Apache-2.0
// Scopes that acquire and open a block for its forward or backward pass.
#pragma once

#include "base/span.hpp"
#include "nn/context.hpp"

namespace models {

class ForwardBlock {
 public:
  ForwardBlock(nn::Context& ctx, int block, int next)
      : ForwardBlock(ctx, block, next, "block forward") {}
  ForwardBlock(nn::Context& ctx, int block, int next, const base::SpanName& name)
      : ctx_(ctx), block_(block), span_(name, block, base::SpanKind::block) {
    ctx.weights.acquire(block, next);
  }
  ~ForwardBlock() { ctx_.weights.release(block_); }
  ForwardBlock(const ForwardBlock&) = delete;

 private:
  nn::Context& ctx_;
  int block_;
  base::Span span_;
};

// Runs `run`, the backward pass of the block, between open and close of the block's gradients.
template <class Run>
void backward_block(nn::Context& ctx, int block, int next, Run run) {
  ForwardBlock weights(ctx, block, next, "block backward");
  ctx.gradients->open(block);
  run();
  ctx.gradients->close(block);
}

}  // namespace models
