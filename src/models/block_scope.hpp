// SPDX-License-Identifier: Apache-2.0
// Acquire and open a block for the time of its forward or backward pass.
#pragma once

#include "nn/context.hpp"

namespace models {

class ForwardBlock {
 public:
  ForwardBlock(nn::Context& ctx, int block, int next) : ctx_(ctx), block_(block) {
    ctx.weights.acquire(block, next);
  }
  ~ForwardBlock() { ctx_.weights.release(block_); }
  ForwardBlock(const ForwardBlock&) = delete;

 private:
  nn::Context& ctx_;
  int block_;
};

// `run` does the backward pass of the block between open and close of its gradients.
template <class Run>
void backward_block(nn::Context& ctx, int block, int next, Run run) {
  ForwardBlock weights(ctx, block, next);
  ctx.gradients->open(block);
  run();
  ctx.gradients->close(block);
}

}  // namespace models
