// SPDX-License-Identifier: Apache-2.0
// Batch normalisation (ssl.md 1.4). Its statistics belong to groups of examples of the global
// batch, never to ranks, so a deck means the same model on every mesh. Sums follow the tree of
// level "mesh".
//
// Rows are examples x views x pixels: x is [examples, per_example, height, width, `width`]. For
// vectors the height and width of images are 1.
//
// In training the layer uses the statistics of the batch, otherwise the running ones. The running
// values get one update for each of the layer's forward calls in a pass. The update uses the means
// and unbiased variances, averaged over all groups of the step. The last pass makes it with the
// sums of all passes, so running values do not depend on accumulation. Without states in the
// context, running values do not change.
#pragma once

#include <span>
#include <string>

#include "kernels/batch_norm.hpp"
#include "nn/context.hpp"
#include "nn/convolution.hpp"

namespace nn {

// The layer's forward calls in a pass, one for each size of images: the number of this one, and how
// many there are.
struct BatchNormCall {
  int64_t number = 0, count = 1;
};

struct BatchNorm {
  int scale = -1, bias = -1;                                   // optional [width]
  int running_mean = -1, running_variance = -1, batches = -1;  // states [width], [width], scalar
  int64_t width = 0;
  // Consecutive examples of the global batch that share statistics; 0: all of them, which must then
  // be in one pass.
  int64_t group_examples = 0;
  std::string group_key = "model.trunk.group_examples";  // for messages
  float eps = 1e-5f, momentum = 0.1f;

  // Statistics of the groups that this pass holds: f32 [groups, width].
  struct Saved {
    View mean, rstd;
  };
  using Call = BatchNormCall;
  Saved make_saved(Context& ctx, bool saved) const;
  // Fills saved from x, or from the running values, and updates the running values. Exchanges sums
  // with other ranks if a group has examples of several ranks. Error(Exit::config) if a rank's
  // examples cannot be divided into groups.
  void measure(Context& ctx, View x, const ImageSize& size, const Saved& saved,
               Call call = {}) const;
  kernels::BatchNormValues values(const Context& ctx, const Saved& saved) const;
  // Measures and normalises.
  void forward(Context& ctx, View x, const ImageSize& size, const Saved& saved, View y,
               bool relu = false, Call call = {}) const;

  // Images of one size that passed through the layer, and gradients, all of x's type.
  struct Passed {
    View x;
    Saved saved;
    ImageSize size;
    View dy;     // gradient of the output
    View dx;     // becomes the gradient of x; may be dy
    View add{};  // optional: another gradient of the output, added to dy
    View y{};    // optional: the output after ReLU; without it the ReLU is found from x
    // optional, needed with `add` and `y`: becomes the gradient of the sum of norm and shortcut;
    // may be dy
    View g{};
  };
  // Computes dx and the gradients of scale and bias of all sizes of images. relu: a ReLU followed.
  void backward(Context& ctx, std::span<const Passed> all, bool relu) const;

 private:
  void update_running(Context& ctx, View moments, int64_t parts, int64_t groups, int64_t ranks,
                      Call call) const;
};

// What batch norm and group norm share (image_norm.hpp). scale, bias: parameters [width], or -1.
kernels::BatchNormValues norm_values(const Context& ctx, int scale, int bias,
                                     const BatchNorm::Saved& saved);
// Returns the values, with copies of scale and bias that can be read until the arena is popped,
// also when their block is not acquired.
kernels::BatchNormValues keep_parameters(Context& ctx, kernels::BatchNormValues values);
// Returns the op that computes y from x and the values, without shortcut and ReLU, which the caller
// may add. Backward runs it again and gets the same bits. y and x are of one type.
kernels::BatchNormForward normalised_by(const Context& ctx, View x, const ImageSize& size,
                                        const kernels::BatchNormValues& values, int64_t width,
                                        View y);

}  // namespace nn
