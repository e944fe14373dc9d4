// SPDX-License-Identifier: Apache-2.0
// Runs one layer on one rank: its parameters in real stores, an arena, and a context. Checks its
// gradients: forward and backward in float against a naive double reference and its central
// differences, and slices against slices added by the test.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "nn/context.hpp"

namespace rig {

using device::View;
using Floats = std::vector<float>;
using Doubles = std::vector<double>;

struct Tensor {
  std::string path;
  std::vector<int64_t> shape;
  bool trainable = true;
  double scale = 0.5, shift = 0;  // of the made-up values
};

// Returns seeded numbers, exact in float.
inline Doubles numbers(int64_t count, const std::string& name, double scale = 1, double shift = 0) {
  Doubles out;
  base::Stream s(11, name);
  for (int64_t i = 0; i < count; ++i)
    out.push_back(double(float(shift + scale * s.normal(uint64_t(i)))));
  return out;
}
inline Floats floats(const Doubles& v) { return {v.begin(), v.end()}; }

// A world of one rank with one block of parameters.
struct World {
  explicit World(const std::vector<Tensor>& tensors, bool tree = true, int64_t accumulation = 1,
                 bool bf16 = false)
      : ranks(comm::make_plan_comm(1)),
        mesh(comm::make_plan_mesh({1, 1}, *ranks)),
        queue(device::Kind::cpu, 1, true),
        layout(parameters(tensors), {"block"}, {}, 1, 1),
        fabric{layout, mesh, queue, ledger, tree, bf16 ? device::DType::bf16 : device::DType::f32},
        weights(fabric, 0),
        gradients(fabric, accumulation),
        arena(device::Kind::cpu, ledger, "activations", int64_t{4} << 20) {}

  static std::vector<shard::Parameter> parameters(const std::vector<Tensor>& tensors) {
    std::vector<shard::Parameter> out;
    for (const Tensor& t : tensors)
      out.push_back(
          {.path = t.path,
           .shape = t.shape,
           .init = {},
           .block = 0,
           .kind = t.trainable ? shard::ParameterKind::trained : shard::ParameterKind::frozen,
           .operand = true});
    return out;
  }
  void set(int parameter, const Doubles& values) {
    View v = weights.weight(parameter);
    CHECK(v.count == int64_t(values.size()));
    for (int64_t i = 0; i < v.count; ++i) v.f32()[i] = float(values[size_t(i)]);
  }
  nn::Context context(int64_t batch, int64_t slices = 1, int64_t first_example = 0,
                      bool train = true) {
    return {{.queue = queue, .arena = arena},
            {.weights = weights, .gradients = &gradients},
            {.batch = batch, .slices = slices, .first_example = first_example},
            {.train = train, .dropout = dropout_stream()}};
  }
  static base::Stream dropout_stream() { return base::Stream(5, "dropout").sub(9); }

  std::unique_ptr<comm::Comm> ranks;
  comm::Mesh mesh;
  device::Queue queue;
  device::Ledger ledger;
  shard::Layout layout;
  shard::Fabric fabric;
  shard::WeightStore weights;
  shard::GradientStore gradients;
  device::Arena arena;
};

// A layer to check. Inputs and outputs are [batch, elements per example].
struct Subject {
  std::string name;
  std::vector<Tensor> parameters;
  std::vector<int64_t> inputs;  // elements per example of each input
  int64_t output = 0;           // elements per example
  int64_t batch = 8;
  int64_t first_example = 0;
  bool train = true;
  bool bf16 = false;  // products take bf16 operands
  // Computes y of examples [first, first + batch), in double.
  std::function<Doubles(const std::vector<Doubles>& parameters, const std::vector<Doubles>& inputs,
                        int64_t batch, int64_t first)>
      reference;
  // Runs the layer: y from x, then the gradients dx of all inputs (one view each) for dy.
  std::function<void(nn::Context& ctx, const std::vector<View>& x, View y, View dy,
                     const std::vector<View>& dx)>
      run;
  double tolerance = 5e-6;  // relative to the largest element of each tensor
  double least = 0;         // least size that the tolerance refers to, where a gradient cancels
};

struct Result {
  Floats y;
  std::vector<Floats> inputs, parameters;  // gradients
};

// Runs examples [begin, begin + batch) of the subject in `slices` slices.
inline Result run(const Subject& s, const std::vector<Doubles>& parameters,
                  const std::vector<Doubles>& inputs, const Doubles& dy, int64_t begin,
                  int64_t batch, int64_t slices) {
  World world(s.parameters, true, 1, s.bf16);
  for (size_t p = 0; p < parameters.size(); ++p) world.set(int(p), parameters[p]);
  world.weights.publish();
  auto part = [&](const Doubles& v, int64_t per) {
    return Floats(v.begin() + begin * per, v.begin() + (begin + batch) * per);
  };
  auto view = [](Floats& v) { return device::view(v.data(), int64_t(v.size())); };
  std::vector<Floats> x, dx;
  for (size_t i = 0; i < inputs.size(); ++i) {
    x.push_back(part(inputs[i], s.inputs[i]));
    dx.emplace_back(x[i].size(), NAN);
  }
  std::vector<View> x_views, dx_views;
  for (size_t i = 0; i < x.size(); ++i) {
    x_views.push_back(view(x[i]));
    dx_views.push_back(view(dx[i]));
  }
  Floats y(size_t(batch * s.output), NAN), d = part(dy, s.output);

  nn::Context ctx = world.context(batch, slices, s.first_example + begin, s.train);
  world.gradients.begin_step();
  world.gradients.begin_micro_batch(0);
  world.gradients.open(0);
  for (size_t p = 0; p < parameters.size(); ++p)
    if (View g = ctx.gradient(int(p)).view; !g.none())
      for (int64_t i = 0; i < g.count; ++i) g.f32()[i] = NAN;  // every element must be written
  s.run(ctx, x_views, view(y), view(d), dx_views);
  EXPECT_EQ(world.arena.high().bytes, 0) << "temporaries are dropped";
  Result r{y, dx, {}};
  for (size_t p = 0; p < parameters.size(); ++p) {
    View g = ctx.gradient(int(p)).view;
    r.parameters.push_back(g.none() ? Floats() : Floats(g.f32(), g.f32() + g.count));
  }
  world.gradients.close(0);
  world.gradients.finish_step();
  return r;
}

inline void expect_close(const Floats& actual, const Doubles& expected, const Subject& s,
                         const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = s.least, worst = 0;
  size_t at = 0;
  for (double e : expected) largest = std::max(largest, std::abs(e));
  for (size_t i = 0; i < actual.size(); ++i)
    if (double error = std::abs(double(actual[i]) - expected[i]); !(error <= worst)) {
      worst = error;
      at = i;
    }
  EXPECT_LE(worst, s.tolerance * largest) << s.name << ", " << what << ": element " << at << " is "
                                          << actual[at] << ", not " << expected[at];
  EXPECT_GT(largest, 0) << s.name << ", " << what << ": nothing to compare";
}

inline bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * 4) == 0);
}

// Computes central differences of fourth order of sum(dy * reference) in double. Their error is far
// below that of float.
inline Doubles differences(const Subject& s, std::vector<Doubles>& parameters,
                           std::vector<Doubles>& inputs, const Doubles& dy, Doubles& varied) {
  auto objective = [&] {
    Doubles y = s.reference(parameters, inputs, s.batch, s.first_example);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
    return sum;
  };
  Doubles out;
  const double h = 1e-3;
  for (double& v : varied) {
    double before = v;
    auto with = [&](double step) {
      v = before + step;
      return objective();
    };
    double near = with(h) - with(-h), far = with(2 * h) - with(-2 * h);
    v = before;
    out.push_back((8 * near - far) / (12 * h));
  }
  return out;
}

// Adds the parts along the binary tree over neighbours, by recursion.
inline Floats tree_sum(const std::vector<Floats>& parts, size_t begin, size_t end) {
  if (end - begin == 1) return parts[begin];
  size_t middle = begin + (end - begin) / 2;
  Floats a = tree_sum(parts, begin, middle), b = tree_sum(parts, middle, end);
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

// Made-up numbers for a subject.
struct Numbers {
  std::vector<Doubles> parameters, inputs;
  Doubles dy;
};

// Checks values and gradients of all examples in one slice. Returns the numbers that it used.
inline Numbers check_gradients(const Subject& s) {
  std::vector<Doubles> parameters, inputs;
  for (const Tensor& t : s.parameters) {
    int64_t n = 1;
    for (int64_t d : t.shape) n *= d;
    parameters.push_back(numbers(n, s.name + t.path, t.scale, t.shift));
  }
  for (size_t i = 0; i < s.inputs.size(); ++i)
    inputs.push_back(numbers(s.batch * s.inputs[i], fmt::format("{}/x{}", s.name, i)));
  Doubles dy = numbers(s.batch * s.output, s.name + "/dy");

  Result whole = run(s, parameters, inputs, dy, 0, s.batch, 1);
  expect_close(whole.y, s.reference(parameters, inputs, s.batch, s.first_example), s, "forward");
  for (size_t i = 0; i < inputs.size(); ++i)
    expect_close(whole.inputs[i], differences(s, parameters, inputs, dy, inputs[i]), s,
                 fmt::format("gradient of input {}", i));
  for (size_t p = 0; p < parameters.size(); ++p) {
    EXPECT_EQ(whole.parameters[p].empty(), !s.parameters[p].trainable);
    if (s.parameters[p].trainable)
      expect_close(whole.parameters[p], differences(s, parameters, inputs, dy, parameters[p]), s,
                   "gradient of " + s.parameters[p].path);
  }
  return {parameters, inputs, dy};
}

inline void check(const Subject& s) {
  SCOPED_TRACE(s.name);
  const auto [parameters, inputs, dy] = check_gradients(s);
  for (int64_t slices : {1, 2, 4}) {
    SCOPED_TRACE(fmt::format("{} slices", slices));
    Result together = run(s, parameters, inputs, dy, 0, s.batch, slices);
    std::vector<Result> alone;
    int64_t each = s.batch / slices;
    for (int64_t j = 0; j < slices; ++j)
      alone.push_back(run(s, parameters, inputs, dy, j * each, each, 1));
    Floats y;
    for (const Result& r : alone) y.insert(y.end(), r.y.begin(), r.y.end());
    EXPECT_TRUE(same_bits(together.y, y)) << "forward";
    for (size_t i = 0; i < inputs.size(); ++i) {
      Floats dx;
      for (const Result& r : alone) dx.insert(dx.end(), r.inputs[i].begin(), r.inputs[i].end());
      EXPECT_TRUE(same_bits(together.inputs[i], dx)) << "gradient of input " << i;
    }
    for (size_t p = 0; p < parameters.size(); ++p) {
      std::vector<Floats> parts;
      for (const Result& r : alone) parts.push_back(r.parameters[p]);
      EXPECT_TRUE(same_bits(together.parameters[p], tree_sum(parts, 0, parts.size())))
          << s.parameters[p].path;
    }
  }
}

}  // namespace rig
