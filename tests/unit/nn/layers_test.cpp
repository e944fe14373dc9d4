// SPDX-License-Identifier: Apache-2.0
// Tests Linear, LayerNorm, LayerScale, Mlp and dropout: values, gradients of inputs and parameters,
// slices.
#include "nn/layers.hpp"

#include <fmt/ranges.h>

#include "kernels/bf16_value.hpp"
#include "reference.hpp"

namespace {

using device::View;
using rig::Doubles;
using rig::Floats;
using rig::Subject;
using Parameters = std::vector<Doubles>;
using Inputs = std::vector<Doubles>;
using Write = kernels::Write;

constexpr int64_t kPositions = 3;  // rows per example

struct LinearCase {
  const char* name;
  bool bias = false, residual = false, frozen_kernel = false, frozen_bias = false;
  Write dx_write = Write::overwrite;
};

Subject linear(const LinearCase& c, int64_t in = 7, int64_t out = 5) {
  nn::Linear layer{.kernel = 0, .bias = c.bias ? 1 : -1, .in = in, .out = out};
  Subject s;
  s.name = c.name;
  s.parameters = {{"kernel", {in, out}, !c.frozen_kernel}};
  if (c.bias) s.parameters.push_back({"bias", {out}, !c.frozen_bias});
  s.inputs = {kPositions * in};
  if (c.residual) s.inputs.push_back(kPositions * out);
  s.output = kPositions * out;
  s.reference = [=](const Parameters& p, const Inputs& x, int64_t, int64_t) {
    Doubles y = reference::linear(x[0], p[0], c.bias ? &p[1] : nullptr, in, out);
    if (c.residual)
      for (size_t i = 0; i < y.size(); ++i) y[i] += x[1][i];
    return y;
  };
  s.run = [=](nn::Context& ctx, const std::vector<View>& x, View y, View dy,
              const std::vector<View>& dx) {
    int64_t rows = ctx.batch * kPositions;
    layer.forward(ctx, x[0], rows, y, c.residual ? x[1] : View{});
    layer.backward(ctx, dy, x[0], rows, dx[0]);
    if (c.residual) ctx.run(kernels::Copy{.y = dx[1], .x = dy});
  };
  return s;
}

TEST(Linear, WithoutBias) { rig::check(linear({.name = "linear"})); }
TEST(Linear, WithBias) { rig::check(linear({.name = "linear+bias", .bias = true})); }
TEST(Linear, WithResidual) {
  rig::check(linear({.name = "linear+residual", .bias = true, .residual = true}));
}
TEST(Linear, FrozenKernel) {
  rig::check(linear({.name = "frozen kernel", .bias = true, .frozen_kernel = true}));
}
TEST(Linear, FrozenBias) {
  rig::check(linear({.name = "frozen bias", .bias = true, .frozen_bias = true}));
}
TEST(Linear, SingleColumn) { rig::check(linear({.name = "linear 9x1", .bias = true}, 9, 1)); }
TEST(Linear, SingleInput) { rig::check(linear({.name = "linear 1x6", .bias = true}, 1, 6)); }

// With precision.compute = "bf16", operands of products are rounded, and no other value.
TEST(Linear, RoundsTheOperandsOfBf16Products) {
  constexpr int64_t kIn = 24, kOut = 40, kBatch = 4;
  Subject exact = linear({.name = "f32", .bias = true, .residual = true}, kIn, kOut),
          narrow = exact;
  narrow.bf16 = true;
  auto rounded = [](Doubles v) {
    for (double& x : v)
      x = double(kernels::loops::to_float(kernels::loops::round_to_bf16(float(x))));
    return v;
  };
  Doubles kernel = rig::numbers(kIn * kOut, "kernel"), bias = rig::numbers(kOut, "bias");
  Doubles x = rig::numbers(kBatch * kPositions * kIn, "x"),
          residual = rig::numbers(kBatch * kPositions * kOut, "residual");
  Doubles dy = rig::numbers(kBatch * kPositions * kOut, "dy");
  for (int64_t slices : {1, 2}) {
    rig::Result got = rig::run(narrow, {kernel, bias}, {x, residual}, dy, 0, kBatch, slices);
    rig::Result wanted = rig::run(exact, {rounded(kernel), bias}, {rounded(x), residual},
                                  rounded(dy), 0, kBatch, slices);
    rig::Result unrounded = rig::run(exact, {kernel, bias}, {x, residual}, dy, 0, kBatch, slices);
    auto distance = [](const Floats& a, const Floats& b) {
      float worst = 0;
      for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
      return worst;
    };
    for (auto [a, b, c] :
         {std::tie(got.y, wanted.y, unrounded.y),
          std::tie(got.inputs[0], wanted.inputs[0], unrounded.inputs[0]),
          std::tie(got.parameters[0], wanted.parameters[0], unrounded.parameters[0])}) {
      EXPECT_LT(distance(a, b), 2e-5);
      EXPECT_GT(distance(a, c), 2e-3);
    }
    EXPECT_TRUE(rig::same_bits(got.parameters[1], wanted.parameters[1]))
        << "both gradients of the layer must read the rounded dy";
    EXPECT_FALSE(rig::same_bits(got.parameters[1], unrounded.parameters[1]));
  }
}

TEST(Linear, AddsToTheInputGradientAndDoesWithoutIt) {
  nn::Linear layer{.kernel = 0, .bias = -1, .in = 4, .out = 3};
  rig::World world({{"kernel", {4, 3}}});
  world.set(0, rig::numbers(12, "kernel"));
  Floats x = rig::floats(rig::numbers(8, "x")), dy = rig::floats(rig::numbers(6, "dy"));
  Floats once(8), added(8, 10.0f);
  nn::Context ctx = world.context(2);
  world.gradients.begin_micro_batch(0);
  world.gradients.open(0);
  auto view = [](Floats& v) { return device::view(v.data(), int64_t(v.size())); };
  layer.backward(ctx, view(dy), view(x), 2, view(once));
  View g = ctx.gradient(0).view;
  Floats kernel(g.f32(), g.f32() + g.count);
  layer.backward(ctx, view(dy), view(x), 2, view(added), Write::accumulate);
  for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(added[i], once[i] + 10, 2e-6);
  layer.backward(ctx, view(dy), view(x), 2, View{});  // only the kernel's gradient
  EXPECT_TRUE(rig::same_bits(kernel, Floats(g.f32(), g.f32() + g.count)))
      << "each pass overwrites the gradient";
}

Subject layer_norm(const std::string& name, int64_t width, bool bias, bool frozen_scale = false,
                   bool frozen_bias = false, float epsilon = 1e-6f) {
  nn::LayerNorm layer{.scale = 0, .bias = bias ? 1 : -1, .width = width, .epsilon = epsilon};
  Subject s;
  s.name = name;
  s.parameters = {{"scale", {width}, !frozen_scale, 0.3, 1}};
  if (bias) s.parameters.push_back({"bias", {width}, !frozen_bias});
  s.inputs = {kPositions * width};
  s.output = kPositions * width;
  s.reference = [=](const Parameters& p, const Inputs& x, int64_t, int64_t) {
    return reference::layer_norm(x[0], p[0], bias ? &p[1] : nullptr, width, double(epsilon));
  };
  s.run = [=](nn::Context& ctx, const std::vector<View>& x, View y, View dy,
              const std::vector<View>& dx) {
    device::Arena::Scope scope(ctx.arena);
    int64_t rows = ctx.batch * kPositions;
    nn::LayerNorm::Saved saved = layer.make_saved(ctx, true, rows);
    layer.forward(ctx, x[0], rows, y, saved);
    layer.backward(ctx, dy, x[0], rows, saved, dx[0], Write::overwrite);
  };
  return s;
}

TEST(LayerNorm, WithBias) { rig::check(layer_norm("norm", 11, true)); }
TEST(LayerNorm, WithoutBias) { rig::check(layer_norm("norm without bias", 11, false)); }
TEST(LayerNorm, Wide) { rig::check(layer_norm("norm 40", 40, true)); }
TEST(LayerNorm, Epsilon) { rig::check(layer_norm("norm", 11, true, false, false, 0.07f)); }
TEST(LayerNorm, FrozenScale) { rig::check(layer_norm("norm, frozen scale", 8, true, true, false)); }
TEST(LayerNorm, FrozenBias) { rig::check(layer_norm("norm, frozen bias", 8, true, false, true)); }
TEST(LayerNorm, FrozenAltogether) { rig::check(layer_norm("norm, frozen", 8, true, true, true)); }

// On a residual path the gradient is added to the present one.
TEST(LayerNorm, AddsToTheResidualGradient) {
  Subject s = layer_norm("norm on a residual", 12, true);
  auto plain = s.reference;
  s.reference = [=](const Parameters& p, const Inputs& x, int64_t batch, int64_t first) {
    Doubles y = plain(p, x, batch, first);
    for (size_t i = 0; i < y.size(); ++i) y[i] += x[0][i];
    return y;
  };
  nn::LayerNorm layer{.scale = 0, .bias = 1, .width = 12};
  s.run = [=](nn::Context& ctx, const std::vector<View>& x, View y, View dy,
              const std::vector<View>& dx) {
    device::Arena::Scope scope(ctx.arena);
    int64_t rows = ctx.batch * kPositions;
    nn::LayerNorm::Saved saved = layer.make_saved(ctx, true, rows);
    layer.forward(ctx, x[0], rows, y, saved);
    ctx.run(kernels::Add{.y = y, .a = y, .b = x[0]});
    ctx.run(kernels::Copy{.y = dx[0], .x = dy});
    layer.backward(ctx, dy, x[0], rows, saved, dx[0], Write::accumulate);
  };
  rig::check(s);
}

Subject layer_scale(bool frozen) {
  constexpr int64_t width = 11;
  const nn::LayerScale layer{.scale = 0, .width = width};
  Subject s;
  s.name = frozen ? "layer scale, frozen" : "layer scale";
  s.parameters = {{"scale", {width}, !frozen}};
  s.inputs = {kPositions * width, kPositions * width};  // x, residual
  s.output = kPositions * width;
  s.reference = [=](const Parameters& p, const Inputs& x, int64_t, int64_t) {
    Doubles y = x[1];
    for (size_t i = 0; i < y.size(); ++i) y[i] += p[0][i % width] * x[0][i];
    return y;
  };
  s.run = [=](nn::Context& ctx, const std::vector<View>& x, View y, View dy,
              const std::vector<View>& dx) {
    const int64_t rows = ctx.batch * kPositions;
    layer.forward(ctx, x[0], rows, x[1], y);
    layer.backward(ctx, dy, x[0], rows, dx[0]);
    ctx.run(kernels::Copy{.y = dx[1], .x = dy});
  };
  return s;
}

TEST(LayerScale, AddsABranch) { rig::check(layer_scale(false)); }
TEST(LayerScale, Frozen) { rig::check(layer_scale(true)); }

struct MlpCase {
  const char* name;
  bool bias = true;
  float rate = 0;
  bool train = true;
  int64_t first_example = 0;
  bool frozen = false;  // the first kernel
  nn::Gelu gelu = nn::Gelu::tanh;
  bool gated = false;
};

Subject mlp(const MlpCase& c) {
  constexpr int64_t width = 6, hidden = 10;
  nn::Mlp layer{.hidden = {.in = width, .out = hidden},
                .output = {.in = hidden, .out = width},
                .gelu = c.gelu,
                .dropout_rate = c.rate,
                .dropout_name = "test/mlp",
                .layer = 3};
  Subject s;
  s.name = c.name;
  s.train = c.train;
  s.first_example = c.first_example;
  s.parameters = {{"k0", {width, hidden}, !c.frozen}, {"k1", {hidden, width}}};
  layer.hidden.kernel = 0;
  layer.output.kernel = 1;
  if (c.bias) {
    s.parameters.push_back({"b0", {hidden}});
    s.parameters.push_back({"b1", {width}});
    layer.hidden.bias = 2;
    layer.output.bias = 3;
  }
  const size_t gate = s.parameters.size();
  if (c.gated) {
    layer.gate = {
        .kernel = int(gate), .bias = c.bias ? int(gate) + 1 : -1, .in = width, .out = hidden};
    s.parameters.push_back({"gate", {width, hidden}});
    if (c.bias) s.parameters.push_back({"gate bias", {hidden}});
  }
  s.inputs = {kPositions * width, kPositions * width};  // x, residual
  s.output = kPositions * width;
  s.reference = [=](const Parameters& p, const Inputs& x, int64_t, int64_t first) {
    const Doubles before = reference::linear(x[0], p[0], c.bias ? &p[2] : nullptr, width, hidden);
    Doubles h = c.gelu == nn::Gelu::erf     ? reference::gelu_erf(before)
                : c.gelu == nn::Gelu::quick ? reference::gelu_quick(before)
                                            : reference::gelu(before);
    if (c.gated) {
      h = reference::linear(x[0], p[gate], c.bias ? &p[gate + 1] : nullptr, width, hidden);
      for (size_t i = 0; i < h.size(); ++i) h[i] = h[i] / (1 + std::exp(-h[i])) * before[i];
    }
    if (c.train && c.rate > 0)
      h = reference::dropout(h, c.rate, reference::stream_of("test/mlp", 3),
                             first * kPositions * hidden);
    Doubles y = reference::linear(h, p[1], c.bias ? &p[3] : nullptr, hidden, width);
    for (size_t i = 0; i < y.size(); ++i) y[i] += x[1][i];
    return y;
  };
  s.run = [=](nn::Context& ctx, const std::vector<View>& x, View y, View dy,
              const std::vector<View>& dx) {
    device::Arena::Scope scope(ctx.arena);
    int64_t rows = ctx.batch * kPositions;
    nn::Mlp::Saved saved = layer.make_saved(ctx, true, true, rows);
    layer.forward(ctx, x[0], rows, saved, y, x[1]);
    layer.backward(ctx, dy, x[0], rows, saved, dx[0]);
    ctx.run(kernels::Copy{.y = dx[1], .x = dy});
  };
  return s;
}

TEST(Mlp, WithBias) { rig::check(mlp({.name = "mlp"})); }
TEST(Mlp, WithoutBias) { rig::check(mlp({.name = "mlp without bias", .bias = false})); }
TEST(Mlp, Dropout) { rig::check(mlp({.name = "mlp with dropout", .rate = 0.3f})); }
TEST(Mlp, DropoutOfLaterExamples) {
  rig::check(mlp({.name = "mlp with dropout", .rate = 0.5f, .first_example = 1234567}));
}
TEST(Mlp, NoDropoutInEvaluation) {
  rig::check(mlp({.name = "mlp, evaluating", .rate = 0.5f, .train = false}));
}
// Activations between the products are bf16. They differ from the f32 layer only by that rounding,
// for any slices.
TEST(Mlp, Bf16) {
  for (float rate : {0.0f, 0.3f}) {
    Subject s = mlp({.name = "mlp in bf16", .rate = rate});
    s.bf16 = true;
    s.tolerance = 2e-2;
    rig::check(s);
  }
}
TEST(Mlp, ExactGelu) {
  for (float rate : {0.0f, 0.3f})
    rig::check(mlp({.name = "mlp, exact", .rate = rate, .gelu = nn::Gelu::erf}));
  Subject s = mlp({.name = "mlp, exact, in bf16", .gelu = nn::Gelu::erf});
  s.bf16 = true;
  s.tolerance = 2e-2;
  rig::check(s);
}
TEST(Mlp, QuickGelu) {
  for (float rate : {0.0f, 0.3f})
    rig::check(mlp({.name = "mlp, quick", .rate = rate, .gelu = nn::Gelu::quick}));
}
TEST(Mlp, Swiglu) {
  for (float rate : {0.0f, 0.3f})
    rig::check(mlp({.name = "mlp, gated", .rate = rate, .gated = true}));
  rig::check(mlp({.name = "mlp, gated, without bias", .bias = false, .gated = true}));
  rig::check(mlp({.name = "mlp, gated, frozen", .frozen = true, .gated = true}));
  Subject s = mlp({.name = "mlp, gated, in bf16", .gated = true});
  s.bf16 = true;
  s.tolerance = 2e-2;
  rig::check(s);
}
TEST(Mlp, FrozenFirstKernel) { rig::check(mlp({.name = "mlp, frozen", .frozen = true})); }

Subject dropout(float rate, int64_t first_example) {
  constexpr int64_t per_example = 29;
  Subject s;
  s.name = fmt::format("dropout {} from {}", rate, first_example);
  s.first_example = first_example;
  s.parameters = {{"unused", {1}, false}};
  s.inputs = {per_example};
  s.output = per_example;
  s.reference = [=](const Parameters&, const Inputs& x, int64_t, int64_t first) {
    return reference::dropout(x[0], rate, reference::stream_of("test/whole", 1),
                              first * per_example);
  };
  s.run = [=](nn::Context& ctx, const std::vector<View>& x, View y, View dy,
              const std::vector<View>& dx) {
    nn::dropout(ctx, y, x[0], rate, "test/whole", 1, per_example);
    nn::dropout(ctx, dx[0], dy, rate, "test/whole", 1, per_example);
  };
  return s;
}

TEST(Dropout, KeepsWhatTheStreamSays) {
  for (float rate : {0.1f, 0.5f, 0.9f})
    for (int64_t first : {0, 17}) rig::check(dropout(rate, first));
}

TEST(Dropout, LayersNamesAndStepsDiffer) {
  rig::World world({{"unused", {1}}});
  constexpr int64_t n = 4000;
  Floats ones(n, 1.0f);
  auto draw = [&](const char* name, int layer, uint64_t step, int64_t first) {
    Floats y(n);
    nn::Context ctx = world.context(1);
    ctx.dropout = base::Stream(5, "dropout").sub(step);
    ctx.first_example = first;
    nn::dropout(ctx, device::view(y.data(), n), device::view(ones.data(), n), 0.5f, name, layer, n);
    return y;
  };
  Floats a = draw("a", 0, 1, 0);
  EXPECT_TRUE(rig::same_bits(a, draw("a", 0, 1, 0)));
  for (const Floats& b :
       {draw("b", 0, 1, 0), draw("a", 1, 1, 0), draw("a", 0, 2, 0), draw("a", 0, 1, 1)}) {
    int64_t equal = 0;
    for (size_t i = 0; i < n; ++i) equal += a[i] == b[i];
    EXPECT_NEAR(double(equal), n / 2, 4 * std::sqrt(n / 4.0))
        << "independent masks agree in half of the places";
  }
}

// In level "run", micro-batches after the first are added to the gradient.
TEST(GradientStore, MicroBatchesAddUp) {
  nn::Linear layer{.kernel = 0, .bias = 1, .in = 4, .out = 3};
  std::vector<rig::Tensor> tensors = {{"kernel", {4, 3}}, {"bias", {3}}};
  auto view = [](Floats& v) { return device::view(v.data(), int64_t(v.size())); };
  Floats x = rig::floats(rig::numbers(24, "x")), dy = rig::floats(rig::numbers(18, "dy"));
  auto gradients = [&](bool tree, const std::vector<int64_t>& passes) {
    rig::World world(tensors, tree, int64_t(passes.size()));
    world.set(0, rig::numbers(12, "kernel"));
    world.set(1, rig::numbers(3, "bias"));
    for (int step = 0; step < 2; ++step) {  // the second step must not see the first
      world.gradients.begin_step();
      for (size_t m = 0; m < passes.size(); ++m) {
        nn::Context ctx = world.context(2);
        world.gradients.begin_micro_batch(int64_t(m));
        world.gradients.open(0);
        layer.backward(ctx, view(dy).slice(passes[m] * 6, 6), view(x).slice(passes[m] * 8, 8), 2,
                       View{});
        world.gradients.close(0);
      }
      world.gradients.finish_step();
    }
    View owned = world.gradients.owned(0);
    return Floats(owned.f32(), owned.f32() + owned.count);
  };
  std::vector<Floats> alone;
  for (int64_t m : {0, 1, 2}) alone.push_back(gradients(true, {m}));
  Floats tree = gradients(true, {0, 1, 2}), running = gradients(false, {0, 1, 2});
  for (size_t i = 0; i < tree.size(); ++i) {
    EXPECT_EQ(tree[i], (alone[0][i] + alone[1][i]) + alone[2][i]);
    EXPECT_NEAR(running[i], tree[i], 1e-5);
  }
  EXPECT_TRUE(rig::same_bits(gradients(false, {1}), alone[1]));
}

// With some frozen parameters in a layer, micro-batches still add to each remaining gradient,
// independently of the others.
TEST(GradientStore, MicroBatchesAddUpBesideFrozenParameters) {
  constexpr int64_t kIn = 4, kOut = 3, kRows = 2, kPasses = 3;
  auto view = [](Floats& v) { return device::view(v.data(), int64_t(v.size())); };
  Floats x = rig::floats(rig::numbers(kPasses * kRows * kIn, "x")),
         dy = rig::floats(rig::numbers(kPasses * kRows * kOut, "dy"));
  Floats dz = rig::floats(rig::numbers(kPasses * kRows * kIn, "dz")), dx(kRows * kIn),
         y(kRows * kIn);
  // Parameters: kernel and bias of a Linear, scale and bias of a LayerNorm.
  auto gradients = [&](const std::array<bool, 4>& frozen, const std::vector<int64_t>& passes) {
    rig::World world({{"kernel", {kIn, kOut}, !frozen[0]},
                      {"bias", {kOut}, !frozen[1]},
                      {"scale", {kIn}, !frozen[2]},
                      {"shift", {kIn}, !frozen[3]}},
                     false, int64_t(passes.size()));
    for (int p = 0; p < 4; ++p)
      world.set(p, rig::numbers(world.weights.weight(p).count, fmt::format("parameter {}", p)));
    const nn::Linear linear{.kernel = 0, .bias = 1, .in = kIn, .out = kOut};
    const nn::LayerNorm norm{.scale = 2, .bias = 3, .width = kIn};
    std::vector<Floats> sums;
    world.gradients.begin_step();
    for (size_t m = 0; m < passes.size(); ++m) {
      nn::Context ctx = world.context(kRows);
      device::Arena::Scope scope(ctx.arena);
      world.gradients.begin_micro_batch(int64_t(m));
      world.gradients.open(0);
      const View in = view(x).slice(passes[m] * kRows * kIn, kRows * kIn);
      const nn::LayerNorm::Saved saved = norm.make_saved(ctx, true, kRows);
      norm.forward(ctx, in, kRows, view(y), saved);
      norm.backward(ctx, view(dz).slice(passes[m] * kRows * kIn, kRows * kIn), in, kRows, saved,
                    view(dx), Write::overwrite);
      linear.backward(ctx, view(dy).slice(passes[m] * kRows * kOut, kRows * kOut), in, kRows,
                      view(dx));
      if (m + 1 == passes.size())
        for (int p = 0; p < 4; ++p) {
          const View g = ctx.gradient(p).view;
          sums.push_back(g.none() ? Floats() : Floats(g.f32(), g.f32() + g.count));
        }
      world.gradients.close(0);
    }
    world.gradients.finish_step();
    return sums;
  };
  std::vector<std::vector<Floats>> alone;
  for (int64_t m = 0; m < kPasses; ++m) alone.push_back(gradients({}, {m}));
  for (int mask = 0; mask < 16; ++mask) {
    const std::array<bool, 4> frozen = {(mask & 1) != 0, (mask & 2) != 0, (mask & 4) != 0,
                                        (mask & 8) != 0};
    SCOPED_TRACE(fmt::format("frozen: {}", frozen));
    const std::vector<Floats> all = gradients(frozen, {0, 1, 2});
    for (size_t p = 0; p < 4; ++p) {
      ASSERT_EQ(all[p].empty(), frozen[p]) << p;
      for (size_t i = 0; i < all[p].size(); ++i)
        EXPECT_NEAR(all[p][i], alone[0][p][i] + alone[1][p][i] + alone[2][p][i], 1e-5) << p;
    }
  }
}

}  // namespace
