// SPDX-License-Identifier: Apache-2.0
// Heads: what turns rows of features into the rows that a loss reads (ssl.md 2). A head is one
// block of the model. Its parameters have torchvision's names and shapes below the head's path:
// "head/clf.0.weight" [out, in].
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "config/table.hpp"
#include "models/block_scope.hpp"
#include "models/parameter_list.hpp"
#include "nn/context.hpp"

namespace models {

using device::View;
using kernels::Write;

class Head {
 public:
  // Holds what a pass keeps from forward to backward.
  struct Pass {
    virtual ~Pass() = default;
    device::Arena::Mark start{};  // of what forward saves
  };
  virtual ~Head() = default;
  int block() const { return block_; }
  // Returns the width of each output.
  virtual std::vector<int64_t> widths() const = 0;
  // Returns the parameter numbers of the prototypes [K, D] of each output of scores, if the head
  // has some (swav).
  virtual std::vector<int> prototypes() const { return {}; }
  // Returns the number of consecutive rows of x that become one row of y.
  virtual int64_t joins() const { return 1; }
  virtual std::unique_ptr<Pass> make_pass() const = 0;
  // Computes the outputs y, each f32 [rows / joins(), width], from x [rows, in], f32 or of the
  // activations' type. rows: a multiple of ctx.batch. x must stay as it is until backward. next:
  // the block whose weights are gathered ahead, or -1. Saved tensors are at the arena's low end.
  void forward(nn::Context& ctx, View x, int64_t rows, std::span<const View> y, int next,
               Pass& pass) const {
    pass.start = ctx.arena.low();
    ForwardBlock weights(ctx, block_, next);
    compute(ctx, x, rows, y, pass);
  }
  // Computes the parameters' gradients and overwrites dx, f32 [rows, in], if there is one. dy: the
  // gradient of each output, used as workspace; the gradient of an embedding beside scores may be
  // none, which means zero. before: the block that runs backward next, or -1.
  void backward(nn::Context& ctx, std::span<const View> dy, View dx, int before, Pass& pass) const {
    backward_block(ctx, block_, before, [&] { differentiate(ctx, dy, dx, pass); });
    ctx.arena.pop_low(pass.start);
  }
  // Runs forward, then `loss`, which turns y into its gradient, then backward. The weights are
  // gathered once.
  template <class Loss>
  void train(nn::Context& ctx, View x, int64_t rows, std::span<const View> y, const Loss& loss,
             View dx, int before, Pass& pass) const {
    pass.start = ctx.arena.low();
    backward_block(ctx, block_, before, [&] {
      compute(ctx, x, rows, y, pass);
      loss();
      differentiate(ctx, y, dx, pass);
    });
    ctx.arena.pop_low(pass.start);
  }
  // Returns the FLOPs of the products of one row.
  virtual int64_t forward_flops() const = 0;

 protected:
  explicit Head(int block) : block_(block) {}

 private:
  // The work of forward and backward, with the block's weights at hand.
  virtual void compute(nn::Context& ctx, View x, int64_t rows, std::span<const View> y,
                       Pass& pass) const = 0;
  virtual void differentiate(nn::Context& ctx, std::span<const View> dy, View dx,
                             Pass& pass) const = 0;

  int block_;
};

// [model.head]: kind and the options of that kind.
struct HeadOptions {
  std::string kind = "mlp";
  std::shared_ptr<config::Table::Variant> options;
  void bind(config::Table& t);
};
// Declares the head's parameters below `path`, in a block of that name.
std::unique_ptr<Head> make_head(const HeadOptions& options, const std::string& path, int64_t in,
                                ParameterList& list);
// A product with big_vision's names, path/kernel [in, out] and path/bias, whose kernel begins with
// zeros.
std::unique_ptr<Head> make_linear_head(const std::string& path, int64_t in, int64_t out,
                                       double bias, ParameterList& list);

}  // namespace models
