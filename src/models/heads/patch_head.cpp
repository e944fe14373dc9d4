// SPDX-License-Identifier: Apache-2.0
// The head of PIRL (ssl.md 3.7): an example is an image and its patches, one row each. Outputs: the
// embedding of all patches together, and the embedding of the image.
#include <array>

#include "models/heads/head_kinds.hpp"

namespace models {
namespace {

class PatchHead : public Head {
 public:
  PatchHead(const PatchHeadOptions& o, const std::string& path, int64_t in, ParameterList& list)
      : Head(list.begin_block(path)),
        patches_(o.patches),
        in_(in),
        patch_(o.patch.chain(path + "/patch", in), list),
        joined_(o.joined.chain(path + "/joined", o.patches * patch_.width()), list),
        image_(o.image.chain(path + "/image", in), list) {}

  struct State : Pass {
    std::array<View, 2> places;  // i32: the rows of images, the rows of patches
    HeadLayers::Pass patch, joined, image;
  };

  std::vector<int64_t> widths() const override { return {joined_.width(), image_.width()}; }
  int64_t joins() const override { return 1 + patches_; }
  std::unique_ptr<Pass> make_pass() const override { return std::make_unique<State>(); }

  // Returns the mean over the rows of an example.
  int64_t forward_flops() const override {
    return (image_.forward_flops() + joined_.forward_flops() + patches_ * patch_.forward_flops()) /
           joins();
  }

 private:
  void compute(nn::Context& ctx, View x, int64_t rows, std::span<const View> y,
               Pass& pass) const override {
    State& state = dynamic_cast<State&>(pass);
    device::Arena::Scope scope(ctx.arena);
    const int64_t n = rows / joins();
    state.places = places(ctx, n);
    const View image = gathered(ctx, x, state.places[0], rows),
               patches = gathered(ctx, x, state.places[1], rows),
               middle = ctx.make(ctx.keep, n * patches_ * patch_.width());
    patch_.forward(ctx, patches, n * patches_, middle, state.patch);
    joined_.forward(ctx, middle, n, y[0], state.joined);
    image_.forward(ctx, image, n, y[1], state.image);
  }

  void differentiate(nn::Context& ctx, std::span<const View> dy, View dx,
                     Pass& pass) const override {
    State& state = dynamic_cast<State&>(pass);
    device::Arena::Scope scope(ctx.arena);
    const int64_t n = dy[0].count / joined_.width();
    const View d_image = ctx.arena.temporary(n * in_),
               d_patches = ctx.arena.temporary(n * patches_ * in_),
               d_middle = ctx.arena.temporary(n * patches_ * patch_.width());
    image_.backward(ctx, dy[1], d_image, state.image);
    joined_.backward(ctx, dy[0], d_middle, state.joined);
    patch_.backward(ctx, d_middle, d_patches, state.patch);
    if (dx.none()) return;
    const std::array<View, 2> d = {d_image, d_patches};
    for (size_t i = 0; i < d.size(); ++i)
      ctx.run(kernels::ScatterRows{.y = dx,
                                   .x = d[i],
                                   .index = state.places[i],
                                   .rows = state.places[i].count,
                                   .width = in_,
                                   .target_rows = n * joins()});
  }

  // The rows of images and of patches of n examples: an image comes first.
  std::array<View, 2> places(nn::Context& ctx, int64_t n) const {
    std::vector<int32_t> images, patches;
    for (int64_t r = 0; r < n * joins(); ++r)
      (r % joins() == 0 ? images : patches).push_back(int32_t(r));
    return {ctx.table(ctx.keep, images), ctx.table(ctx.keep, patches)};
  }
  View gathered(nn::Context& ctx, View x, View index, int64_t rows) const {
    const View out = ctx.make(ctx.keep, index.count * in_, x.type);
    ctx.run(kernels::GatherRows{
        .y = out, .x = x, .index = index, .rows = index.count, .width = in_, .source_rows = rows});
    return out;
  }

  int64_t patches_, in_;
  HeadLayers patch_, joined_, image_;
};

}  // namespace

std::unique_ptr<Head> make_patch_head(const PatchHeadOptions& options, const std::string& path,
                                      int64_t in, ParameterList& list) {
  return std::make_unique<PatchHead>(options, path, in, list);
}

}  // namespace models
