// SPDX-License-Identifier: Apache-2.0
// Tests the layer of batch norm: gradients against differences of a double reference, with groups
// inside a slice, over slices and over the whole batch, with two sizes of images, with constant
// statistics, and the messages for groups that do not fit. tests/mpi/batch_norm_test.cpp has ranks.
#include "nn/batch_norm.hpp"

#include "rig.hpp"

namespace {

using device::View;
using rig::Doubles;
using rig::Floats;
using rig::Subject;

constexpr int64_t kChannels = 5;
const nn::ImageSize kSize{2, 2, 3}, kSmall{1, 1, 2};

nn::BatchNorm layer(int64_t group_examples) {
  return {.scale = 0, .bias = 1, .width = kChannels, .group_examples = group_examples};
}

// Normalises x [batch, pixels, width] by groups of examples, 0: all.
Doubles normalised(const Doubles& scale, const Doubles& bias, const Doubles& x, int64_t batch,
                   int64_t group) {
  Doubles y(x.size());
  const int64_t groups = group ? batch / group : 1, rows = int64_t(x.size()) / kChannels / groups;
  for (int64_t g = 0; g < groups; ++g)
    for (int64_t j = 0; j < kChannels; ++j) {
      auto at = [&](int64_t r) { return size_t((g * rows + r) * kChannels + j); };
      double mean = 0, variance = 0;
      for (int64_t r = 0; r < rows; ++r) mean += x[at(r)] / double(rows);
      for (int64_t r = 0; r < rows; ++r)
        variance += (x[at(r)] - mean) * (x[at(r)] - mean) / double(rows);
      for (int64_t r = 0; r < rows; ++r)
        y[at(r)] =
            (x[at(r)] - mean) / std::sqrt(variance + 1e-5) * scale[size_t(j)] + bias[size_t(j)];
    }
  return y;
}

Subject subject(int64_t group, bool two_sizes = false) {
  Subject s;
  s.name = fmt::format("batch norm of groups of {}", group);
  s.parameters = {{"scale", {kChannels}, true, 0.3, 1}, {"bias", {kChannels}}};
  s.inputs = {kSize.pixels() * kChannels};
  if (two_sizes) s.inputs.push_back(kSmall.pixels() * kChannels);
  for (int64_t n : s.inputs) s.output += n;
  s.tolerance = 1e-5;
  s.reference = [=](const std::vector<Doubles>& p, const std::vector<Doubles>& x, int64_t batch,
                    int64_t) {
    Doubles y;
    for (const Doubles& of : x) {
      const Doubles part = normalised(p[0], p[1], of, batch, group);
      y.insert(y.end(), part.begin(), part.end());
    }
    return y;
  };
  s.run = [=](nn::Context& ctx, const std::vector<View>& x, View y, View dy,
              const std::vector<View>& dx) {
    device::Arena::Scope scope(ctx.arena);
    const nn::BatchNorm norm = layer(group);
    std::vector<nn::BatchNorm::Passed> all;
    int64_t at = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const nn::ImageSize& size = i ? kSmall : kSize;
      const nn::BatchNorm::Saved saved = norm.make_saved(ctx, false);
      norm.forward(ctx, x[i], size, saved, y.slice(at, x[i].count));
      all.push_back(
          {.x = x[i], .saved = saved, .size = size, .dy = dy.slice(at, x[i].count), .dx = dx[i]});
      at += x[i].count;
    }
    norm.backward(ctx, all, false);
  };
  return s;
}

TEST(BatchNorm, GroupsInsideASlice) { rig::check(subject(2)); }
TEST(BatchNorm, GroupsOfOneExample) { rig::check(subject(1)); }

// Compares a whole batch, in slices, with the reference.
void check_whole(const Subject& s) {
  std::vector<Doubles> parameters, inputs;
  for (const rig::Tensor& t : s.parameters)
    parameters.push_back(rig::numbers(kChannels, s.name + t.path, t.scale, t.shift));
  for (size_t i = 0; i < s.inputs.size(); ++i)
    inputs.push_back(rig::numbers(s.batch * s.inputs[i], fmt::format("{}/x{}", s.name, i)));
  const Doubles dy = rig::numbers(s.batch * s.output, s.name + "/dy");
  for (int64_t slices : {1, 2, 4, 8}) {
    SCOPED_TRACE(fmt::format("{} in {} slices", s.name, slices));
    const rig::Result got = rig::run(s, parameters, inputs, dy, 0, s.batch, slices);
    rig::expect_close(got.y, s.reference(parameters, inputs, s.batch, 0), s, "forward");
    for (size_t i = 0; i < inputs.size(); ++i)
      rig::expect_close(got.inputs[i], rig::differences(s, parameters, inputs, dy, inputs[i]), s,
                        "input");
    for (size_t p = 0; p < parameters.size(); ++p)
      rig::expect_close(got.parameters[p],
                        rig::differences(s, parameters, inputs, dy, parameters[p]), s, "parameter");
  }
}

TEST(BatchNorm, GroupsOverSlices) {
  check_whole(subject(0));
  check_whole(subject(4));
}

TEST(BatchNorm, TwoSizesHaveStatisticsOfTheirOwn) {
  check_whole(subject(0, true));
  check_whole(subject(2, true));
}

// Without training the layer uses running values, and its gradient is that of a fixed function.
TEST(BatchNorm, RunningValuesAreConstants) {
  Subject s = subject(0);
  s.name = "running values";
  s.train = false;
  s.parameters = {{"scale", {kChannels}, true, 0.3, 1},
                  {"bias", {kChannels}},
                  {"mean", {kChannels}, false},
                  {"variance", {kChannels}, false, 0.1, 2}};
  s.reference = [](const std::vector<Doubles>& p, const std::vector<Doubles>& x, int64_t, int64_t) {
    Doubles y;
    for (size_t i = 0; i < x[0].size(); ++i) {
      const size_t j = i % kChannels;
      y.push_back((x[0][i] - p[2][j]) / std::sqrt(p[3][j] + 1e-5) * p[0][j] + p[1][j]);
    }
    return y;
  };
  s.run = [](nn::Context& ctx, const std::vector<View>& x, View y, View dy,
             const std::vector<View>& dx) {
    device::Arena::Scope scope(ctx.arena);
    nn::BatchNorm norm = layer(0);
    norm.running_mean = 2;
    norm.running_variance = 3;
    const nn::BatchNorm::Saved saved = norm.make_saved(ctx, false);
    norm.forward(ctx, x[0], kSize, saved, y);
    norm.backward(ctx,
                  std::vector<nn::BatchNorm::Passed>{
                      {.x = x[0], .saved = saved, .size = kSize, .dy = dy, .dx = dx[0]}},
                  false);
  };
  rig::check(s);
}

// Returns the message of a pass with groups of `group` examples.
std::string message(int64_t group, int64_t batch, int64_t slices, int64_t passes,
                    const nn::ImageSize& size = kSize) {
  rig::World world({{"scale", {kChannels}}, {"bias", {kChannels}}});
  nn::Context ctx = world.context(batch, slices);
  ctx.passes = passes;
  Floats x(size_t(batch * size.pixels() * kChannels), 1), y(x);
  device::Arena::Scope scope(ctx.arena);
  try {
    const nn::BatchNorm norm = layer(group);
    const nn::BatchNorm::Saved saved = norm.make_saved(ctx, false);
    norm.forward(ctx, device::view(x.data(), int64_t(x.size())), size, saved,
                 device::view(y.data(), int64_t(y.size())));
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::Exit::config);
    return e.what();
  }
  return "";
}

TEST(BatchNorm, RefusesUnevenGroupsByName) {
  EXPECT_EQ(message(4, 8, 4, 1), "");
  EXPECT_EQ(message(4, 8, 1, 3), "");
  const std::string uneven = message(3, 8, 1, 1);
  for (const char* part : {"model.trunk.group_examples = 3", "equal groups", "set it to 2 or 4"})
    EXPECT_NE(uneven.find(part), std::string::npos) << uneven;
  EXPECT_NE(message(16, 8, 1, 1).find("set it to 8"), std::string::npos) << message(16, 8, 1, 1);
  const std::string split = message(0, 8, 1, 4);
  for (const char* part : {"model.trunk.group_examples = 0", "accumulation splits into 4 passes",
                           "set it to 8, or train.micro_batch to 32"})
    EXPECT_NE(split.find(part), std::string::npos) << split;
  const std::string single = message(1, 8, 1, 1, {1, 1, 1});
  EXPECT_NE(single.find("one value per channel"), std::string::npos) << single;
}

}  // namespace
