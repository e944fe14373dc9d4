// SPDX-License-Identifier: Apache-2.0
// Tests layers that one product computes: values and gradients are those of the layers alone.
#include "nn/joined_linear.hpp"

#include "reference.hpp"

namespace joined_linear_test {
namespace {

using device::View;
using rig::Doubles;
using rig::Subject;
using Parameters = std::vector<Doubles>;
using Inputs = std::vector<Doubles>;
using Write = kernels::Write;

constexpr int64_t kRows = 3, kIn = 7;  // rows per example
const std::vector<int64_t> kOut{5, 4, 6};

struct Case {
  const char* name;
  size_t layers = 3;
  bool bias = false;
  int frozen_kernel = -1, frozen_bias = -1;  // of one layer
  Write dx_write = Write::overwrite;
};

Subject joined(const Case& c) {
  std::vector<nn::Linear> layers;
  int64_t columns = 0;
  Subject s;
  s.name = c.name;
  for (size_t i = 0; i < c.layers; ++i) {
    nn::Linear layer{.kernel = int(s.parameters.size()), .in = kIn, .out = kOut[i]};
    const std::string path = fmt::format("layer {}", i);
    s.parameters.push_back({path + "/kernel", {kIn, kOut[i]}, int(i) != c.frozen_kernel});
    if (c.bias) {
      layer.bias = int(s.parameters.size());
      s.parameters.push_back({path + "/bias", {kOut[i]}, int(i) != c.frozen_bias});
    }
    layers.push_back(layer);
    columns += kOut[i];
  }
  s.inputs = {kRows * kIn};
  s.output = kRows * columns;
  s.reference = [=](const Parameters& p, const Inputs& x, int64_t batch, int64_t) {
    Doubles y(size_t(batch * kRows * columns));
    int64_t begin = 0;
    for (const nn::Linear& l : layers) {
      const Doubles part = reference::linear(x[0], p[size_t(l.kernel)],
                                             l.bias < 0 ? nullptr : &p[size_t(l.bias)], kIn, l.out);
      for (int64_t i = 0; i < int64_t(part.size()); ++i)
        y[size_t(i / l.out * columns + begin + i % l.out)] = part[size_t(i)];
      begin += l.out;
    }
    return y;
  };
  s.run = [=](nn::Context& ctx, const std::vector<View>& x, View y, View dy,
              const std::vector<View>& dx) {
    const int64_t rows = ctx.batch * kRows;
    const nn::JoinedLinear all = layers.size() == 3
                                     ? nn::JoinedLinear{&layers[0], &layers[1], &layers[2]}
                                     : nn::JoinedLinear{&layers[0], &layers[1]};
    EXPECT_EQ(all.columns(), columns);
    device::Arena::Scope scope(ctx.arena);
    all.forward(ctx, ctx.operand(x[0]), rows, y);
    if (c.dx_write == Write::accumulate) ctx.run(kernels::Fill{.y = dx[0], .value = 0});
    const View d = ctx.operand(dy);
    all.backward_input(ctx, d, rows, dx[0], c.dx_write);
    all.parameter_gradients(ctx, d, x[0], rows);
  };
  return s;
}

void check(const Case& c) {
  SCOPED_TRACE(c.name);
  rig::check_gradients(joined(c));
}

TEST(JoinedLinear, OfTwoAndThreeLayers) {
  check({.name = "three"});
  check({.name = "three with biases", .bias = true});
  check({.name = "two", .layers = 2});
  check({.name = "two with biases", .layers = 2, .bias = true});
}
TEST(JoinedLinear, AddsToTheGradientOfItsInput) {
  check({.name = "added", .layers = 2, .dx_write = Write::accumulate});
}
TEST(JoinedLinear, FrozenParametersGetNoGradient) {
  check({.name = "frozen kernel", .bias = true, .frozen_kernel = 1});
  check({.name = "frozen bias", .bias = true, .frozen_bias = 2});
}

TEST(JoinedLinear, PartsAreColumns) {
  const nn::Linear a{.in = 2, .out = 3}, b{.in = 2, .out = 4};
  const nn::JoinedLinear both{&a, &b};
  std::vector<float> memory(21);
  const View all = device::view(memory.data(), 21);
  EXPECT_EQ(both.part(all, 3, 0).data, memory.data());
  EXPECT_EQ(both.part(all, 3, 0).count, 2 * 7 + 3);
  EXPECT_EQ(both.part(all, 3, 1).data, memory.data() + 3);
  EXPECT_EQ(both.part(all, 3, 1).count, 2 * 7 + 4);
  EXPECT_EQ(both.part(all, 0, 1).count, 0);
}

}  // namespace
}  // namespace joined_linear_test
