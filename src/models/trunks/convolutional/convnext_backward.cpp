// SPDX-License-Identifier: Apache-2.0
// The backward pass of a ConvNeXt. Gradients of layers have the single part `d`.
#include "kernels/activation.hpp"
#include "kernels/layer_scale.hpp"
#include "models/trunks/convolutional/convnext.hpp"

namespace models {
namespace {

// Returns slice j of a tensor with equal slices.
View slice_of(const nn::Context& ctx, View v, int64_t j) {
  const int64_t count = v.count / ctx.slices;
  return v.none() ? v : v.slice(j * count, count);
}

}  // namespace

void ConvnextStem::backward(nn::Context& ctx, std::vector<Kept>& all,
                            std::vector<MapGradient>& gradients) const {
  std::vector<nn::LayerNorm::Passed> norms;
  std::vector<nn::Convolution::Passed> convolutions;
  for (size_t g = 0; g < all.size(); ++g) {
    const Kept& kept = all[g];
    const View dc = ctx.arena.temporary(kept.saved.c.count);
    norms.push_back({.dy = gradients[g].d,
                     .x = kept.saved.c,
                     .rows = positions_of(ctx, kept.out),
                     .saved = kept.saved.norm,
                     .dx = dc});
    convolutions.push_back({.x = kept.x, .dy = dc, .size = kept.size});
  }
  norm.backward(ctx, norms, Write::overwrite);
  convolution.backward_weights(ctx, convolutions);
  for (size_t g = 0; g < all.size(); ++g)
    if (!gradients[g].image.none())
      convolution.backward_data(ctx, convolutions[g].dy, all[g].size, gradients[g].image);
}

void ConvnextLayer::backward_downsampling(nn::Context& ctx, const std::vector<Kept>& all,
                                          std::vector<MapGradient>& gradients) const {
  std::vector<nn::LayerNorm::Passed> norms;
  std::vector<nn::Convolution::Passed> convolutions;
  for (size_t g = 0; g < all.size(); ++g)
    convolutions.push_back({.x = all[g].saved.n, .dy = gradients[g].d, .size = all[g].size});
  convolution.backward_weights(ctx, convolutions);
  for (size_t g = 0; g < all.size(); ++g) {
    const Kept& kept = all[g];
    MapGradient& of = gradients[g];
    const View dn = ctx.make_norm_gradient(kept.x.count);
    convolution.backward_data(ctx, of.d, kept.size, dn);
    of.second = !of.second;
    of.d = of.own().slice(0, kept.x.count);
    norms.push_back({.dy = dn,
                     .x = kept.x,
                     .rows = positions_of(ctx, kept.size),
                     .saved = kept.saved.norm,
                     .dx = of.d});
  }
  norm.backward(ctx, norms, Write::overwrite);
}

// Computes d, the gradient of the MLP's output, from the gradient of the layer's output.
void ConvnextLayer::backward_scale(nn::Context& ctx, const std::vector<Kept>& all,
                                   const std::vector<MapGradient>& gradients,
                                   std::vector<View>& d) const {
  for (const Kept& kept : all) d.push_back(ctx.make_activation(false, kept.saved.branch.count));
  nn::sum_over_slices(ctx, {layer_scale}, [&](int64_t j, const auto& targets) {
    for (size_t g = 0; g < all.size(); ++g) {
      const Kept& kept = all[g];
      ctx.run(kernels::LayerScaleBackward{.dx = slice_of(ctx, d[g], j),
                                          .dscale = targets[0].view,
                                          .dy = slice_of(ctx, gradients[g].d, j),
                                          .x = slice_of(ctx, kept.saved.branch, j),
                                          .scale = ctx.weight(layer_scale),
                                          .factor = slice_of(ctx, kept.saved.factor, j),
                                          .images = ctx.batch / ctx.slices * kept.out.per_example,
                                          .rows = kept.out.height * kept.out.width,
                                          .columns = channels(),
                                          .write = g == 0 ? targets[0].write : Write::accumulate});
    }
  });
}

// Computes dn, the gradient of the MLP's input, from the gradient of the MLP's output.
void ConvnextLayer::backward_mlp(nn::Context& ctx, std::vector<Kept>& all,
                                 const std::vector<View>& d_branch,
                                 const std::vector<View>& dn) const {
  device::Arena::Scope scope(ctx.arena);
  std::vector<nn::Linear::Passed> of_output, of_hidden;
  for (size_t g = 0; g < all.size(); ++g) {
    make_hidden_again(ctx, all[g]);
    const Saved& s = all[g].saved;
    const nn::Rows rows = positions_of(ctx, all[g].out);
    const View dh = ctx.make_activation(false, rows.count * hidden.out);
    for (int64_t j = 0; j < ctx.slices; ++j)
      ctx.run(output.input_product(ctx, d_branch[g], rows, j, dh, Write::overwrite));
    ctx.run(kernels::ActivationBackward{
        .dx = dh, .dy = dh, .x = s.before, .kind = kernels::Activation::gelu_erf});
    for (int64_t j = 0; j < ctx.slices; ++j)
      ctx.run(hidden.input_product(ctx, dh, rows, j, dn[g], Write::overwrite));
    of_output.push_back({.d = d_branch[g], .x = s.after, .rows = rows});
    of_hidden.push_back({.d = dh, .x = s.n, .rows = rows});
  }
  output.parameter_gradients(ctx, of_output);
  hidden.parameter_gradients(ctx, of_hidden);
}

void ConvnextLayer::backward(nn::Context& ctx, std::vector<Kept>& all,
                             std::vector<MapGradient>& gradients) const {
  if (downsamples) return backward_downsampling(ctx, all, gradients);
  std::vector<View> d_branch, dn;
  backward_scale(ctx, all, gradients, d_branch);
  for (const Kept& kept : all) dn.push_back(ctx.make_norm_gradient(kept.saved.c.count));
  backward_mlp(ctx, all, d_branch, dn);
  std::vector<nn::LayerNorm::Passed> norms;
  std::vector<nn::Convolution::Passed> convolutions;
  for (size_t g = 0; g < all.size(); ++g) {
    const Kept& kept = all[g];
    const View dc = ctx.arena.temporary(kept.saved.c.count);
    norms.push_back({.dy = dn[g],
                     .x = kept.saved.c,
                     .rows = positions_of(ctx, kept.out),
                     .saved = kept.saved.norm,
                     .dx = dc});
    convolutions.push_back({.x = kept.x, .dy = dc, .size = kept.size});
  }
  norm.backward(ctx, norms, Write::overwrite);
  convolution.backward_weights(ctx, convolutions);
  for (size_t g = 0; g < all.size(); ++g)
    convolution.backward_data(ctx, convolutions[g].dy, all[g].size, gradients[g].d,
                              Write::accumulate);
}

}  // namespace models
