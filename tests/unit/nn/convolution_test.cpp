// SPDX-License-Identifier: Apache-2.0
// Tests the layer of convolutions over images of two sizes: values, gradients, slices.
#include "nn/convolution.hpp"

#include "kernels/bf16_value.hpp"
#include "rig.hpp"

namespace {

using device::View;
using rig::Doubles;
using rig::Subject;

// Convolves images [count, size, size, in] with a window of `kernel` pixels, without bias.
Doubles convolve(const nn::Convolution& layer, const Doubles& x, const Doubles& w, int64_t size) {
  const int64_t count = int64_t(x.size()) / (size * size * layer.in),
                out_size = (size + 2 * layer.padding - layer.kernel) / layer.stride + 1,
                in = layer.in / layer.groups;
  Doubles y(size_t(count * out_size * out_size * layer.out));
  for (int64_t n = 0; n < count; ++n)
    for (int64_t at = 0; at < out_size * out_size; ++at)
      for (int64_t o = 0; o < layer.out; ++o)
        for (int64_t place = 0; place < layer.kernel * layer.kernel; ++place) {
          const int64_t row = at / out_size * layer.stride - layer.padding + place / layer.kernel,
                        column =
                            at % out_size * layer.stride - layer.padding + place % layer.kernel;
          if (row < 0 || row >= size || column < 0 || column >= size) continue;
          for (int64_t c = 0; c < in; ++c)
            y[size_t((n * out_size * out_size + at) * layer.out + o)] +=
                x[size_t(((n * size + row) * size + column) * layer.in +
                         o / (layer.out / layer.groups) * in + c)] *
                w[size_t((o * in + c) * layer.kernel * layer.kernel + place)];
        }
  return y;
}

// An example has one large and four small images. The outputs of both sizes have equally many
// elements, and are added.
Subject two_sizes(const char* name, const nn::Convolution& layer) {
  const nn::ImageSize large{1, 6, 6}, small{4, 3, 3};
  Subject s;
  s.name = name;
  s.parameters = {{"weight", {layer.out, layer.in / layer.groups, layer.kernel, layer.kernel}}};
  s.inputs = {large.pixels() * layer.in, small.pixels() * layer.in};
  s.output = large.pixels() * layer.out;
  s.batch = 4;
  s.reference = [=](const std::vector<Doubles>& p, const std::vector<Doubles>& x, int64_t,
                    int64_t) {
    Doubles y = convolve(layer, x[0], p[0], 6);
    const Doubles more = convolve(layer, x[1], p[0], 3);
    for (size_t i = 0; i < y.size(); ++i) y[i] += more[i];
    return y;
  };
  s.run = [=](nn::Context& ctx, const std::vector<View>& x, View y, View dy,
              const std::vector<View>& dx) {
    device::Arena::Scope scope(ctx.arena);
    View more = ctx.arena.temporary(y.count);
    layer.forward(ctx, x[0], large, y);
    layer.forward(ctx, x[1], small, more);
    ctx.run(kernels::Add{.y = y, .a = y, .b = more});
    layer.backward_data(ctx, dy, large, dx[0]);
    ctx.run(kernels::Fill{.y = dx[1], .value = 0});
    layer.backward_data(ctx, dy, small, dx[1], kernels::Write::accumulate);
    const nn::Convolution::Passed all[] = {{x[0], dy, large}, {x[1], dy, small}};
    layer.backward_weights(ctx, all);
  };
  return s;
}

TEST(Convolution, OfTwoSizes) {
  rig::check(two_sizes("3x3", {.weight = 0, .in = 2, .out = 3, .kernel = 3, .padding = 1}));
}
TEST(Convolution, OfPixels) {
  rig::check(two_sizes("1x1", {.weight = 0, .in = 3, .out = 4, .kernel = 1}));
}
TEST(Convolution, OfGroups) {
  rig::check(two_sizes("groups",
                       {.weight = 0, .in = 4, .out = 2, .kernel = 3, .padding = 1, .groups = 2}));
}

TEST(Convolution, SizesOfOutputs) {
  const nn::Convolution stem{.in = 3, .out = 64, .kernel = 7, .stride = 2, .padding = 3};
  EXPECT_EQ(stem.output_size({2, 224, 96}), (nn::ImageSize{2, 112, 48}));
  EXPECT_EQ(stem.output_size({1, 29, 37}), (nn::ImageSize{1, 15, 19}));
}

// With precision.compute = "bf16" both operands of all three convolutions are rounded.
TEST(Convolution, RoundsTheOperandsOfBf16) {
  const nn::Convolution layer{.weight = 0, .in = 8, .out = 16, .kernel = 3, .padding = 1};
  Subject exact = two_sizes("f32", layer), narrow = exact;
  narrow.bf16 = true;
  const Doubles w = rig::numbers(16 * 8 * 9, "w"), large = rig::numbers(4 * 36 * 8, "x0"),
                small = rig::numbers(4 * 36 * 8, "x1"), dy = rig::numbers(4 * 36 * 16, "dy");
  auto rounded = [](Doubles v) {
    for (double& x : v)
      x = double(kernels::loops::to_float(kernels::loops::round_to_bf16(float(x))));
    return v;
  };
  const rig::Result got = rig::run(narrow, {w}, {large, small}, dy, 0, 4, 2),
                    wanted = rig::run(exact, {rounded(w)}, {rounded(large), rounded(small)},
                                      rounded(dy), 0, 4, 2);
  auto expect_near = [](const rig::Floats& a, const rig::Floats& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-4) << i;
  };
  expect_near(got.y, wanted.y);
  expect_near(got.inputs[0], wanted.inputs[0]);
  expect_near(got.parameters[0], wanted.parameters[0]);
}

}  // namespace
