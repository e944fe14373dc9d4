// SPDX-License-Identifier: Apache-2.0
// Tests attention as a layer: projections, masks, dropout of the weights, self- and
// cross-attention.
#include "nn/layers.hpp"
#include "reference.hpp"

namespace {

using device::View;
using kernels::Mask;
using rig::Doubles;
using rig::Subject;
using Parameters = std::vector<Doubles>;
using Inputs = std::vector<Doubles>;
using Write = kernels::Write;

struct Case {
  std::string name;
  bool cross = false, bias = false;
  Mask mask = Mask::full;
  float rate = 0;
  bool train = true;
  int64_t first_example = 0;
  std::string frozen = "";
  Write memory_write = Write::overwrite;
};

constexpr int64_t kWidth = 6, kHeads = 2, kQueries = 5;

// The flag depends on the global example, so a slice has the flags of its own examples.
bool causal_flag(int64_t example) {
  return base::Stream(1, "flags").uniform(uint64_t(example)) < 0.5f;
}

Subject attention(const Case& c) {
  const int64_t keys = c.cross ? 3 : kQueries, memory_width = c.cross ? 4 : kWidth;
  nn::Attention layer;
  layer.heads = kHeads;
  layer.weight_dropout = c.rate;
  layer.dropout_name = "test/weights";
  layer.layer = 2;
  Subject s;
  s.name = c.name;
  s.train = c.train;
  s.first_example = c.first_example;
  auto project = [&](nn::Linear& l, const std::string& name, int64_t in) {
    l = {.kernel = int(s.parameters.size()), .bias = -1, .in = in, .out = kWidth};
    s.parameters.push_back({name + "/kernel", {in, kWidth}, name != c.frozen, 0.7});
  };
  project(layer.query, "query", kWidth);
  project(layer.key, "key", memory_width);
  project(layer.value, "value", memory_width);
  project(layer.output, "out", kWidth);
  if (c.bias)
    for (auto [l, name] : {std::pair{&layer.query, "query"},
                           {&layer.key, "key"},
                           {&layer.value, "value"},
                           {&layer.output, "out"}}) {
      l->bias = int(s.parameters.size());
      s.parameters.push_back({std::string(name) + "/bias", {kWidth}, name != c.frozen});
    }
  s.inputs = {kQueries * kWidth};
  if (c.cross) s.inputs.push_back(keys * memory_width);
  s.output = kQueries * kWidth;
  s.least = 2;  // key biases have no gradient: a constant added to a row of scores changes nothing
  s.reference = [=](const Parameters& p, const Inputs& x, int64_t batch, int64_t first) {
    auto bias = [&](size_t i) { return c.bias ? &p[4 + i] : nullptr; };
    const Doubles& memory = c.cross ? x[1] : x[0];
    Doubles q = reference::linear(x[0], p[0], bias(0), kWidth, kWidth);
    Doubles k = reference::linear(memory, p[1], bias(1), memory_width, kWidth);
    Doubles v = reference::linear(memory, p[2], bias(2), memory_width, kWidth);
    reference::Heads heads{.batch = batch,
                           .heads = kHeads,
                           .query_length = kQueries,
                           .key_length = keys,
                           .head_dim = kWidth / kHeads};
    heads.causal = [&](int64_t b) {
      return c.mask == Mask::causal || (c.mask == Mask::per_example && causal_flag(first + b));
    };
    heads.rate = c.train ? c.rate : 0;
    heads.stream = reference::stream_of("test/weights", 2);
    heads.first_example = first;
    return reference::linear(reference::attend(q, k, v, heads), p[3], bias(3), kWidth, kWidth);
  };
  s.run = [=](nn::Context& ctx, const std::vector<View>& x, View y, View dy,
              const std::vector<View>& dx) {
    device::Arena::Scope scope(ctx.arena);
    std::vector<uint8_t> flags;
    for (int64_t b = 0; b < ctx.batch; ++b) flags.push_back(causal_flag(ctx.first_example + b));
    View flag_view = c.mask == Mask::per_example ? device::view(flags.data(), ctx.batch) : View{};
    nn::Sequences queries{kQueries, ctx.batch * kQueries}, seen{keys, ctx.batch * keys};
    nn::Attention::Saved saved = layer.make_saved(ctx, true, !c.cross, queries, seen);
    View memory = c.cross ? x[1] : x[0];
    layer.forward_heads(ctx, x[0], queries, memory, seen, c.mask, flag_view, saved);
    layer.forward_output(ctx, saved, ctx.batch * kQueries, y, {});
    if (c.cross && c.memory_write == Write::accumulate)
      ctx.run(kernels::Fill{.y = dx[1], .value = 0});
    layer.backward(ctx, dy, x[0], queries, c.cross ? x[1] : View{}, seen, c.mask, flag_view, saved,
                   dx[0], c.cross ? dx[1] : View{}, c.memory_write);
  };
  return s;
}

TEST(Attention, Self) { rig::check(attention({.name = "self"})); }
TEST(Attention, SelfWithBiases) { rig::check(attention({.name = "self+bias", .bias = true})); }
TEST(Attention, SelfCausal) {
  rig::check(attention({.name = "self causal", .mask = Mask::causal}));
}
TEST(Attention, SelfPerExample) {
  bool some = false, all = true;
  for (int64_t e = 0; e < 8; ++e) {
    some |= causal_flag(e);
    all &= causal_flag(e);
  }
  ASSERT_TRUE(some && !all) << "the examples must differ";
  rig::check(attention({.name = "self per example", .bias = true, .mask = Mask::per_example}));
}
TEST(Attention, Bf16) {
  for (Case c : {Case{.name = "self in bf16", .bias = true, .mask = Mask::causal},
                 Case{.name = "cross in bf16", .cross = true}}) {
    Subject s = attention(c);
    // With few rows, the gradient of keys mostly cancels, but its rounded terms do not.
    s.bf16 = true;
    s.tolerance = 5e-2;
    rig::check(s);
  }
}
TEST(Attention, Cross) { rig::check(attention({.name = "cross", .cross = true})); }
TEST(Attention, CrossWithBiases) {
  rig::check(attention({.name = "cross+bias", .cross = true, .bias = true}));
}
TEST(Attention, CrossAddsToTheMemoryGradient) {
  rig::check(attention({.name = "cross, added", .cross = true, .memory_write = Write::accumulate}));
}
TEST(Attention, SelfDropout) { rig::check(attention({.name = "self dropout", .rate = 0.4f})); }
TEST(Attention, SelfDropoutPerExample) {
  rig::check(attention({.name = "self dropout per example",
                        .mask = Mask::per_example,
                        .rate = 0.3f,
                        .first_example = 1000003}));
}
TEST(Attention, CausalDropout) {
  rig::check(attention({.name = "causal dropout", .mask = Mask::causal, .rate = 0.25f}));
}
TEST(Attention, CrossDropout) {
  rig::check(
      attention({.name = "cross dropout", .cross = true, .rate = 0.4f, .first_example = 77}));
}
TEST(Attention, NoDropoutInEvaluation) {
  rig::check(attention({.name = "evaluating", .mask = Mask::causal, .rate = 0.4f, .train = false}));
}
TEST(Attention, FrozenProjections) {
  for (const char* frozen : {"query", "key", "value", "out"})
    rig::check(
        attention({.name = std::string("frozen ") + frozen, .bias = true, .frozen = frozen}));
}

// A change that a causal query cannot see must not change its result, and a change that it can see
// must.
TEST(Attention, CausalRowsDoNotSeeTheFuture) {
  Subject s = attention({.name = "future", .mask = Mask::causal});
  std::vector<Doubles> parameters, inputs;
  for (const rig::Tensor& t : s.parameters)
    parameters.push_back(rig::numbers(t.shape[0] * t.shape[1], t.path));
  inputs.push_back(rig::numbers(s.inputs[0], "x"));
  Doubles dy = rig::numbers(s.output, "dy");
  rig::Floats before = rig::run(s, parameters, inputs, dy, 0, 1, 1).y;
  for (int64_t i = 0; i < kWidth; ++i) inputs[0][size_t(3 * kWidth + i)] += 1;  // the fourth token
  rig::Floats after = rig::run(s, parameters, inputs, dy, 0, 1, 1).y;
  for (int64_t r = 0; r < kQueries; ++r) {
    auto row = [&](const rig::Floats& y) {
      return rig::Floats(y.begin() + r * kWidth, y.begin() + (r + 1) * kWidth);
    };
    EXPECT_EQ(rig::same_bits(row(before), row(after)), r < 3) << "row " << r;
  }
}

}  // namespace
