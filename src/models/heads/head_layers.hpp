// SPDX-License-Identifier: Apache-2.0
// A chain of products, each followed by optional batch norm, activation and dropout: the common
// part of heads (ssl.md 2).
#pragma once

#include "kernels/activation.hpp"
#include "models/model.hpp"
#include "models/parameter_list.hpp"
#include "nn/batch_norm.hpp"

namespace models {

using device::View;
using kernels::Write;

// Batch norm of a head's layers.
struct HeadNormOptions {
  bool on = false;
  double eps = 1e-5, momentum = 0.1;
  int64_t group_examples = 0;
  std::string group_key = "batch_norm.group_examples";  // its name in the deck, for messages
  void bind(config::Table& t);
};

// How the layers of a chain are made.
struct HeadChain {
  std::string path;             // layers are path.0, path.1, ..., those without parameters too
  std::vector<int64_t> widths;  // of the input and of each product
  HeadNormOptions norm;
  std::optional<kernels::Activation> activation;
  bool bias = true;
  bool bare_last = true;  // nothing follows the last product
  bool numbered = true;   // false: the only layer is named `path` alone
  float dropout = 0;
  double multiplier = 1;          // of all weights and biases of products at the start
  bool truncated_normal = false;  // weights N(0, 0.02^2) and biases 0, instead of uniform ones
};

class HeadLayers {
 public:
  // Declares the parameters in the latest block of `list`.
  HeadLayers(const HeadChain& chain, ParameterList& list);

  struct Saved {
    View x{};       // input of the product
    View before{};  // its result, if anything follows
    View normed{};  // after batch norm, if an activation other than ReLU follows
    nn::BatchNorm::Saved norm{};
  };
  using Pass = std::vector<Saved>;

  int64_t width() const { return layers_.back().product.out; }
  // y f32 [rows, width()] = the chain of x [rows, in]. ctx.keep: saves what backward needs.
  void forward(nn::Context& ctx, View x, int64_t rows, View y, Pass& pass) const;
  // d f32 [rows, width()]: the gradient of y, used as workspace. Overwrites dx, f32, if there is
  // one.
  void backward(nn::Context& ctx, View d, View dx, Pass& pass) const;
  int64_t forward_flops() const;

 private:
  struct Layer {
    nn::Linear product;
    nn::BatchNorm norm;  // width 0: none
    std::optional<kernels::Activation> activation;
    float dropout = 0;

    bool bare() const { return norm.width == 0 && !activation && dropout == 0; }
    // True if batch norm computes the activation too.
    bool fused() const { return norm.width > 0 && activation == kernels::Activation::relu; }
  };
  void finish(nn::Context& ctx, const Layer& layer, int number, int64_t rows, View y,
              Saved& saved) const;
  void start_backward(nn::Context& ctx, const Layer& layer, int number, int64_t rows, View d,
                      const Saved& saved) const;

  std::vector<Layer> layers_;
};

}  // namespace models
