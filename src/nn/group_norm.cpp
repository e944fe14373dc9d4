// SPDX-License-Identifier: Apache-2.0
#include "nn/group_norm.hpp"

namespace nn {
namespace {

using device::DType;

int64_t images_in_pass(const Context& ctx, const ImageSize& size) {
  return ctx.batch * size.per_example;
}
int64_t pixels_of_image(const ImageSize& size) { return size.height * size.width; }

}  // namespace

GroupNorm::Saved GroupNorm::make_saved(Context& ctx, bool saved, const ImageSize& size) const {
  const int64_t count = images_in_pass(ctx, size) * width;
  return {ctx.make(saved, count), ctx.make(saved, count)};
}

void GroupNorm::measure(Context& ctx, View x, const ImageSize& size, const Saved& saved) const {
  device::Arena::Scope scope(ctx.arena);
  const int64_t images = images_in_pass(ctx, size), rows = pixels_of_image(size);
  const View sums = ctx.arena.temporary(images * 2 * width, DType::f64);
  ctx.run(kernels::BatchNormSums{
      .sums = sums, .x = x, .parts = images, .rows = rows, .columns = width});
  ctx.run(kernels::GroupNormStatistics{.mean = saved.mean,
                                       .rstd = saved.rstd,
                                       .sums = sums,
                                       .images = images,
                                       .rows = rows,
                                       .columns = width,
                                       .groups = groups,
                                       .eps = eps});
}

void GroupNorm::backward(Context& ctx, std::span<const Passed> all, bool relu) const {
  device::Arena::Scope scope(ctx.arena);
  std::vector<View> sums;  // of each size, f64 [images, 2, width]
  for (const Passed& p : all) {
    CHECK(!p.g.none() || (p.add.none() && p.y.none()), "no room for the gradient of the norm");
    const int64_t images = images_in_pass(ctx, p.size);
    sums.push_back(ctx.arena.temporary(images * 2 * width, DType::f64));
    ctx.run(kernels::BatchNormBackwardSums{.sums = sums.back(),
                                           .g = p.g,
                                           .dy = p.dy,
                                           .add = p.add,
                                           .y = p.y,
                                           .x = p.x,
                                           .norm = norm_values(ctx, scale, bias, p.saved),
                                           .parts = images,
                                           .groups = images,
                                           .rows = pixels_of_image(p.size),
                                           .columns = width,
                                           .relu = relu});
  }
  sum_over_slices(ctx, {scale, bias}, [&](int64_t j, const auto& targets) {
    for (size_t i = 0; i < all.size(); ++i) {
      const int64_t of_slice = sums[i].count / ctx.slices;
      ctx.run(kernels::BatchNormGradients{.dscale = targets[0].view,
                                          .dbias = targets[1].view,
                                          .sums = sums[i].slice(j * of_slice, of_slice),
                                          .parts = of_slice / (2 * width),
                                          .columns = width,
                                          .scale_write = i ? Write::accumulate : targets[0].write,
                                          .bias_write = i ? Write::accumulate : targets[1].write});
    }
  });
  for (size_t i = 0; i < all.size(); ++i) {
    const Passed& p = all[i];
    if (p.dx.none()) continue;
    ctx.run(kernels::GroupNormBackward{.dx = p.dx,
                                       .dy = p.g.none() ? p.dy : p.g,
                                       .x = p.x,
                                       .norm = norm_values(ctx, scale, bias, p.saved),
                                       .sums = sums[i],
                                       .images = images_in_pass(ctx, p.size),
                                       .rows = pixels_of_image(p.size),
                                       .columns = width,
                                       .groups = groups,
                                       .relu = relu && p.g.none()});
  }
}

}  // namespace nn
